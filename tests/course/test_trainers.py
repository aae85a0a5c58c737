"""The chooser's recipe for the bar of a trainer works in the trainers that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lessons.build import reading

(ROW,) = (row for row in reading.rows_of("chooser.toml", "want") if "bar of a trainer" in row["want"])


def recipe() -> Any:
    """The function that the row defines."""
    tree = ast.parse(ROW["snippet"])
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.FunctionDef)]
    names: dict[str, Any] = {}
    exec(compile(tree, "<snippet>", "exec"), names)
    return names["watched"]


def said_for(trainer: str) -> str:
    """What the row's comments say that is to be written in a trainer."""
    (line,) = re.findall(rf"{trainer}: ([^;\n]*)", ROW["snippet"])
    return str(line)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor, labels: Any = None) -> dict[str, Tensor]:
        return {"loss": 3 * self.last(self.first(x)).sum()}


def test_the_bar_of_transformers_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    net, bar = Net(), dict[str, float]()
    assert said_for("transformers") == "logs.update(bar) in on_log"

    class OnTheBar(TrainerCallback):
        def on_log(self, *args: Any, logs: dict[str, Any], **more: Any) -> None:
            logs.update(bar)

    args = TrainingArguments(str(tmp_path), max_steps=2, logging_steps=1, report_to="none", save_strategy="no")
    args.use_cpu = True
    data = [{"x": torch.ones(2), "labels": 0}]
    trainer = Trainer(net, args, train_dataset=data, callbacks=[OnTheBar()])  # type: ignore[arg-type]
    with recipe()(net.last, "gradient", bar):
        trainer.train()
    assert re.findall(r"'gradient': '?([\d.]+)", "".join(capsys.readouterr()))[:2] == ["3", "3"]


def test_the_table_of_a_notebook_shows_the_loss_alone_and_the_row_says_so() -> None:
    from transformers import IntervalStrategy
    from transformers.utils.notebook import NotebookProgressCallback

    shown = NotebookProgressCallback()
    rows: list[dict[str, Any]] = []
    shown.training_tracker = SimpleNamespace(write_line=rows.append)  # type: ignore[assignment]
    args, state = SimpleNamespace(eval_strategy=IntervalStrategy.NO), SimpleNamespace(global_step=5)
    shown.on_log(args, state, None, logs={"loss": 1.0, "gradient": 3.0})
    assert rows == [{"Training Loss": 1.0, "Step": 5}]
    assert "in notebooks its table shows the loss alone" in ROW["snippet"]


@pytest.mark.filterwarnings("ignore")
def test_the_bar_of_lightning(tmp_path: Path) -> None:
    import lightning

    bar = dict[str, float]()
    assert said_for("Lightning") == "self.log_dict(bar, prog_bar=True)"

    class Learner(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return self.net(batch)["loss"]  # type: ignore[no-any-return]

        def on_train_batch_end(self, *args: Any) -> None:
            self.log_dict(bar, prog_bar=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    learner = Learner()
    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path
    )
    with recipe()(learner.net.last, "gradient", bar):
        trainer.fit(learner, DataLoader([torch.ones(2)]))  # type: ignore[arg-type]
    assert float(trainer.progress_bar_metrics["gradient"]) == 3.0
