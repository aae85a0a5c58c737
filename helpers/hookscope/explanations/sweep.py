"""Write the plain loop of hooks that a sweep stands for: one pass for each cell."""

from __future__ import annotations

from textwrap import indent
from typing import Any

from hookscope.explanations.code import REMOVE, listing, script
from hookscope.explanations.edit import REPLACED, back
from hookscope.explanations.inside import INSIDE, SLOW, UNCHANGED, head_lines
from hookscope.sweeps.result import Made, Row, Sweep

__all__ = ["of_sweep"]


def of_sweep(sweep: Sweep) -> tuple[str, dict[str, Any]]:
    """Write the loop, and collect what it needs beside model and inputs: the metric, and what patches come from."""
    made = sweep.made
    if made is None:
        raise ValueError("this sweep was pickled, and that keeps neither metric nor source: explain it before")
    names: dict[str, Any] = {"metric": made.metric}
    said = ["# metric: your function of what the model returns"]
    if made.inputs is not None:
        names["source"] = made.inputs.kwargs or made.inputs.args
        said.append("# source: your other inputs, which the patches come from")
    ways = list(dict.fromkeys(map(_way, made.rows)))
    inside = any(row.to == "heads" for row in made.rows)
    hooks = [
        _heads(number, way, made.source) if way[0] == "heads" else _hook(number, way, made.source, inside)
        for number, way in enumerate(ways, 1)
    ]
    if made.source != "zero":
        said.append("kept = {}  # row -> what takes the place of what is there")
    code = script(
        "\n".join(said),
        REPLACED if any("replaced(" in hook for hook in hooks) else "",
        INSIDE if inside else "",
        *hooks,
        _rows(made, ways),
        _run(made, inside),
        _loop(sweep, made),
    )
    return code, names


def listing_of(numbers: tuple[int, ...]) -> str:
    """Write whole numbers, as a range where they are one.

    Example:
        >>> listing_of((0, 1, 2)), listing_of((3, 0))
        ('range(0, 3)', '[3, 0]')

    """
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"range({numbers[0]}, {numbers[-1] + 1})"
    return listing(list(map(str, numbers))).replace("'", "")


def _rows(made: Made, ways: list[Any]) -> str:
    """Write which layer each row is, the function that patches it, and how wide its heads are."""
    heads = any(row.width for row in made.rows)
    lines = [f"rows = {{  # row -> its layer, what patches it{', values of a head' if heads else ''}"]
    for row in made.rows:
        number = ways.index(_way(row)) + 1
        key, value = f"{row.label!r}: (", f"{row.layer!r}, patch_{number}{f', {row.width}' if heads else ''}"
        short = f"    {key}{value}),"
        lines += [short] if len(short) <= 88 else [f"    {key}", f"        {value},", "    ),"]
    return "\n".join([*lines, "}"])


_Way = tuple[str, int | None, tuple[tuple[str, Any], ...], bool]


def _way(row: Row) -> _Way:
    return row.to, row.call, row.way, row.flipped


def _new(source: str) -> list[str]:
    """Write the lines that make `new` of `tensor`, or keep it."""
    body = []
    if source != "zero":
        body += ["if index is None:", "    kept[row] = tensor.clone()", "    return None"]
    there = {"zero": "0", "run": "kept[row][index]", "mean": "kept[row].expand_as(new)[index]"}
    return [*body, "new = tensor.clone()  # a copy: others may hold the tensor itself", f"new[index] = {there[source]}"]


def _called(call: int | None, unchanged: str) -> list[str]:
    """Write the lines that leave other calls as they are."""
    return ["nonlocal calls", "calls += 1", f"if calls != {call}:", f"    {unchanged}"] if call is not None else []


def _heads(number: int, way: _Way, source: str) -> str:
    """Write the function that reaches heads inside of an `nn.MultiheadAttention`."""
    _, call, _, flipped = way
    lines = [
        *(["calls = 0", ""] if call is not None else []),
        *head_lines("edit", flipped, _called(call, UNCHANGED), _new(source)).split("\n"),
        "",
        'return inside(layer, "linear", edit)',
    ]
    return "\n".join([f"def patch_{number}(layer, row, index):", *(f"    {line}".rstrip() for line in lines)])


def _hook(number: int, way: _Way, source: str, several: bool) -> str:
    """Write the function that puts a hook on a layer, for one kind of place."""
    to, call, keys, _ = way
    holder, given = "output", "args, output"
    if to == "input":  # one mapping of positions and keywords for sweeps, two for a hook
        by_keyword = isinstance(keys[0][1], str)
        keys = (("dict" if by_keyword else "tuple", keys[0][1]), *keys[1:])
        holder, given = ("kwargs", "args, kwargs") if by_keyword else ("args", "args")
    body = [f"tensor = {holder}" + "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in keys)]
    body += [*_new(source), f"return {back(holder, keys, 'new', to == 'input')}"]
    body = [*_called(call, "return None"), *body]
    kind = "forward_pre_hook" if to == "input" else "forward_hook"
    options = ", with_kwargs=True" if holder == "kwargs" else ""
    lines = [
        *(["calls = 0", ""] if call is not None else []),
        f"def hook(module, {given}):",
        *(f"    {line}" for line in body),
        "",
        f"return [layer.register_{kind}(hook{options})]" if several else f"return layer.register_{kind}(hook{options})",
    ]
    return "\n".join([f"def patch_{number}(layer, row, index):", *(f"    {line}".rstrip() for line in lines)])


def _run(made: Made, inside: bool) -> str:
    """Write a function that runs the model once, with a hook for each of some places."""
    put_on = "handles += patch(" if inside else "handles.append(patch("
    fast, slow, fast_again = [[indent(line, "    ")] if inside else [] for line in SLOW]
    model = "network" if made.writes else "model"
    call = f"{model}({'**' if made.by_keyword else '*'}given)"
    if made.inputs is not None and bool(made.inputs.kwargs) != made.by_keyword:
        call = f"{model}(**given) if isinstance(given, dict) else {model}(*given)"
    random = ", torch.random.fork_rng()" if made.random else ""  # the same numbers in each run
    return "\n".join(
        [
            "def run(given, *places):",
            *(
                ["    network = copy.deepcopy(model)  # a pass changes its buffers, or attributes"]
                if made.writes
                else []
            ),
            "    handles = []",
            *fast,
            "    try:",
            *slow,
            "        for row, index in places:",
            "            layer, patch = rows[row][:2]",
            f"            {put_on}{model}.get_submodule(layer), row, index){'' if inside else ')'}",
            "        given = copy.deepcopy(given)  # a model may write to it",
            f"        with torch.no_grad(){random}:",
            f"            return {call}",
            indent(REMOVE, "    "),
            *fast_again,
        ]
    )


def _loop(sweep: Sweep, made: Made) -> str:
    """Write the passes: what patches come from, the one with nothing changed, and one for each cell."""
    lines = ["baseline = float(metric(run(inputs)))"]
    if made.source != "zero":
        lines.append(f"run({'inputs' if made.inputs is None else 'source'}, *((row, None) for row in rows))")
    if made.source == "mean":
        lines.append("kept = {row: tensor.mean(0, keepdim=True) for row, tensor in kept.items()}")
    each, many = sweep.kind, f"{sweep.kind}s"
    if each == "layer":
        return "\n".join(
            [
                *lines,
                "values = torch.zeros(len(rows), 1, dtype=torch.float64)",
                "for number, row in enumerate(rows):",
                "    values[number, 0] = float(metric(run(inputs, (row, ...))))",
            ]
        )
    index = "(..., slice(head * width, (head + 1) * width))"
    if each != "head":
        index = f"({'slice(None), ' * made.axis}{each})"
    return "\n".join(
        [
            *lines,
            f"{many} = {listing_of(sweep.columns)}",
            f"values = torch.zeros(len(rows), len({many}), dtype=torch.float64)",
            "for number, row in enumerate(rows):",
            *(["    width = rows[row][2]"] if each == "head" else []),
            f"    for column, {each} in enumerate({many}):",
            f"        index = {index}",
            "        values[number, column] = float(metric(run(inputs, (row, index))))",
        ]
    )
