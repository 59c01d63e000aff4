"""``clipfleet model``: the models of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clipfleet.cli.run import PLAIN, Run, command

__all__ = ["register"]

_Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="demo, a bundle directory, or an open_clip name: ViT-B-32/laion2b_s34b_b79k."),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the bundle here instead of into the cache.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Models: list them, know them, export them.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.add_typer(group, name="model")
    command(group, "list", common=PLAIN, examples=("clipfleet model list",))(list_them)
    command(group, "info", common=PLAIN, examples=("clipfleet model info demo --json",))(info)
    command(
        group,
        "export",
        common=PLAIN,
        examples=(
            "clipfleet model export ViT-B-32/laion2b_s34b_b79k",
            "clipfleet model export ViT-B-32/my-checkpoint.safetensors --out models/mine",
        ),
    )(export)


def list_them(run: Run) -> int:
    """List the models that start at once: the demo model and what was exported."""
    from clipfleet.models import list_models  # noqa: PLC0415

    found = list_models()
    if run.out.json_lines:
        for each in found:
            run.out.json(each)
    else:
        columns = ("name", "#dimensions", "#MiB", "fingerprint", "path")
        run.out.table("", columns, [_row(each) for each in found])
    return 1 if any("error" in each for each in found) else 0


def info(run: Run, name: _Name) -> int:
    """Show all that is known of one model: sizes, preprocessing, tokenizer, licence, fingerprint.

    The exit code is 1 when it is not on this machine.
    """
    from clipfleet.models import model_info  # noqa: PLC0415

    known = model_info(name)
    if run.out.json_lines:
        run.out.json(known)
    else:
        run.out.line(json.dumps(known, indent=2, ensure_ascii=False))
        if not known.get("exported", True):
            run.out.line(f"It is not exported yet: clipfleet model export {name}")
    return 0 if known.get("exported", True) else 1


def export(run: Run, name: _Name, *, out: _Out = None) -> int:
    """Export an open_clip model to ONNX and check it against open_clip itself. Needs torch, once; workers do not.

    Its vectors must agree with open_clip's (cosine >= 0.9999), or nothing is written.
    """
    from clipfleet.models import export_model  # noqa: PLC0415  imports torch

    run.out.step(f"exporting {name}; this takes a minute or two")
    bundle = export_model(name, out=out)
    if run.out.json_lines:
        run.out.json({"name": name, "ok": True, "path": str(bundle.path), "fingerprint": bundle.config.fingerprint})
    else:
        run.out.line(f"{name} is in {bundle.path}\nServe it with: clipfleet worker --model {out or name}")
    return 0


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    if "error" in model:
        return ("(broken)", "", "", model["error"], model["path"])
    size = f"{model['bytes'] / 2**20:.1f}"
    return (model["name"], str(model["dimension"]), size, model["fingerprint"][:12], model["path"])
