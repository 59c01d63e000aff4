"""``clipfleet operators``: what pipelines can be made of, and the beginning of one more."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipfleet.cli.errors import CliError
from clipfleet.cli.run import PLAIN, Run, command, usage

if TYPE_CHECKING:
    from clipfleet.operators import Operator

__all__ = ["register"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="As 'clipfleet operators list' shows it.")]
_NewName = Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits and _: what it will be called.")]
_Folder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write it there, not into ./clipfleet-NAME.", show_default=False),
]
_Vectors = Annotated[Path, typer.Argument(metavar="VECTORS.npy", help="Floats of shape [n, d], as numpy.save writes.")]
_To = Annotated[int, typer.Option("--to", metavar="N", min=1, help="How many numbers a vector will have.")]
_Fitted = Annotated[Path, typer.Option("--out", "-o", metavar="FILE.npz", help="Where the fitted file goes.")]
_Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model that made the vectors; the file then refuses to serve those of another one.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Operators: list them, know them, begin your own.", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(group, name="operators")
    command(group, "list", common=PLAIN, examples=("clipfleet operators list", "clipfleet operators list --json"))(
        list_them
    )
    command(group, "info", common=PLAIN, examples=("clipfleet operators info detect",))(info)
    command(
        group,
        "new",
        common=PLAIN,
        examples=("clipfleet operators new blur", "clipfleet operators new blur --out packages/blur"),
    )(new)
    command(
        group,
        "fit-pca",
        common=PLAIN,
        examples=("clipfleet operators fit-pca vectors.npy --to 64 --model demo -o pca.npz",),
    )(fit_pca)


def list_them(run: Run) -> int:
    """List the operators that are installed here: those of clipfleet and of other packages.

    One that cannot be loaded is shown with its problem.
    """
    from clipfleet.operators.registry import OURS, listed  # noqa: PLC0415

    found = listed()
    if run.out.json_lines:
        for each in found:
            row = {"name": each.name, "package": each.package, "version": each.version, "target": each.target}
            row |= {"error": each.problem} if each.operator is None else _kind(each.operator)
            run.out.json(row)
        return 0
    rows = []
    for each in found:
        if each.operator is None:
            rows.append((each.name, f"(broken) {each.problem}", "", f"{each.package} {each.version}"))
        else:
            kind = _kind(each.operator)
            batches = "batches" if kind["batch"] else ""
            rows.append((each.name, kind["task"], batches, f"{each.package} {each.version}"))
    run.out.table("", ("name", "task", "runs", "package"), rows)
    if any(each.package == OURS and each.operator is None for each in found):
        run.out.note('operators need what a worker needs: pip install "clipfleet[cpu]"')
    return 0


def info(run: Run, name: _Name) -> int:
    """Show what an operator does, what it takes and its options."""
    from clipfleet.operators.registry import find  # noqa: PLC0415

    try:
        operator = find(name)
    except ValueError as error:
        raise usage(str(error), "'clipfleet operators list' shows what is there.") from None
    options = _options(operator)
    text = inspect.getdoc(operator) or ""
    if run.out.json_lines:
        target = f"{operator.__module__}:{operator.__qualname__}"
        run.out.json({"name": name, **_kind(operator), "target": target, "options": options, "text": text})
        return 0
    run.out.line(f"{name}({', '.join(_written(option) for option in options)})")
    run.out.line(f"{operator.task}{', in batches' if _kind(operator)['batch'] else ''}")
    run.out.line(f"\n{text}")
    return 0


def new(run: Run, name: _NewName, *, out: _Folder = None) -> int:
    """Begin a package with an operator of your own, its entry point and a test.

    It does something small to begin with, so that the test passes; installed, clipfleet finds it by its name.
    """
    from clipfleet.cli.operator_package import check_name, write_package  # noqa: PLC0415

    try:
        check_name(name)
        _check_free(name)
        folder = out or Path(f"clipfleet-{name.replace('_', '-')}")
        files = write_package(name, folder)
    except ValueError as error:
        raise usage(str(error)) from None
    if run.out.json_lines:
        run.out.json({"name": name, "ok": True, "path": str(folder), "files": [str(file) for file in files]})
    else:
        run.out.line("\n".join(str(file) for file in files))
        run.out.line(f"\nInstall and test it: cd {folder} && pip install -e . && pytest")
    return 0


def fit_pca(run: Run, vectors: _Vectors, *, to: _To, out: _Fitted, model: _Model = None) -> int:
    """Find the directions in which vectors differ most, for the operator reduce_dim.

    Give it a sample of what will be stored: some thousand vectors, ten times as many as --to at the least.
    """
    import numpy as np  # noqa: PLC0415

    from clipfleet.operators import pca  # noqa: PLC0415

    if out.exists():
        raise usage(f"{out} is there already: a collection may hold vectors that it reduced")
    fingerprint = _fingerprint(model)
    try:
        loaded = np.load(vectors, mmap_mode="r", allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            raise CliError(f"{vectors} holds more than one array: give an .npy")
        fitted = pca.fit_pca(loaded, to, model=fingerprint)
    except (ValueError, EOFError) as error:
        raise CliError(f"{vectors}: {error}") from None
    pca.save_pca(fitted, out)
    kept = float(fitted.explained.sum())
    if run.out.json_lines:
        run.out.json(
            {
                "path": str(out),
                "ok": True,
                "vectors": len(loaded),
                "from": int(loaded.shape[1]),
                "to": to,
                "explained": kept,
                "model": fingerprint,
                "fingerprint": fitted.fingerprint,
            }
        )
    else:
        run.out.line(f"{out}: {loaded.shape[1]} numbers to {to}, which keep {kept:.1%} of what {len(loaded)} differ in")
        if not fingerprint:
            run.out.note("no --model was given: nothing will keep vectors of another model from being reduced by it")
    return 0


def _check_free(name: str) -> None:
    from clipfleet.operators.registry import listed  # noqa: PLC0415

    for each in listed():
        if each.name == name:
            raise ValueError(f"{each.package} has an operator {name} already")


def _fingerprint(model: str | None) -> str:
    if model is None:
        return ""
    from clipfleet.models import model_info  # noqa: PLC0415

    known = model_info(model)
    if not known.get("exported"):
        raise CliError(f"{model} is not exported on this machine", hint=f"clipfleet model export {model}")
    return str(known["fingerprint"])


def _kind(operator: type[Operator]) -> dict[str, Any]:
    from clipfleet.operators import BatchOperator  # noqa: PLC0415

    return {"task": operator.task, "batch": issubclass(operator, BatchOperator), "of_model": operator.of_model}


def _options(operator: type[Operator]) -> list[dict[str, Any]]:
    known: Any = operator  # whoever wrote it may have made it no dataclass
    options = []
    for field in dataclasses.fields(known) if dataclasses.is_dataclass(known) else ():
        option: dict[str, Any] = {"name": field.name, "type": str(field.type)}
        if field.default is not dataclasses.MISSING:
            option["default"] = repr(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            # Not called: it is a stranger's, and may do anything.
            option["default"] = f"{getattr(field.default_factory, '__name__', 'a function')}()"
        options.append(option)
    return options


def _written(option: dict[str, Any]) -> str:
    return f"{option['name']}: {option['type']}" + (f" = {option['default']}" if "default" in option else "")
