"""The chooser's recipe for the bar of a trainer works in the trainers that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lessons.build import lesson_source

(ROW,) = (row for row in lesson_source.rows_of("chooser.toml", "want") if "bar of a trainer" in row["want"])


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


@pytest.mark.parametrize("evaluates", ["no", "steps", "epoch"])
def test_the_bar_of_transformers_trainer(evaluates: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.utils.notebook import NotebookProgressCallback

    net, bar, table, rows = Net(), dict[str, float](), NotebookProgressCallback(), list[Any]()
    assert said_for("transformers") == "logs.update(bar) in on_log"

    class OnTheBar(TrainerCallback):
        def on_log(self, *args: Any, logs: dict[str, Any], **more: Any) -> None:
            logs.update(bar)
            rows[:] = table.training_tracker.inner_table or ()  # type: ignore[union-attr]

    args = TrainingArguments(
        str(tmp_path), max_steps=2, logging_steps=1, eval_steps=1, eval_strategy=evaluates, report_to="none",
        save_strategy="no",
    )  # fmt: skip
    args.use_cpu = True
    data = [{"x": torch.ones(2), "labels": 0}]
    trainer = Trainer(net, args, train_dataset=data, eval_dataset=data, callbacks=[OnTheBar(), table])  # type: ignore[arg-type]
    with recipe()(net.last, "gradient", bar):
        trainer.train()
    assert re.findall(r"'gradient': '?([\d.]+)", "".join(capsys.readouterr()))[:2] == ["3", "3"]
    # What a notebook shows as a table.
    assert "a notebook's table leaves it or its name out" in ROW["snippet"]
    heads, first = rows[0], rows[1]
    assert heads[1:] == (["Training Loss"] if evaluates == "no" else ["Training Loss", "Validation Loss", ""])
    assert (3.0 in first) == (evaluates != "no")


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
