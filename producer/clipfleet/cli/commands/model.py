"""``clipfleet model``: the models of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clipfleet.cli.errors import CliError, Exit
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
_Provider = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME",
        help="onnx, or tensorrt: then its engines are built too, on this machine's GPU and for its driver.",
    ),
]
_Device = Annotated[str, typer.Option("--device", metavar="cuda:N", help="The GPU that tensorrt builds for.")]


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
            "clipfleet model export demo --provider tensorrt --device cuda:0",
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


def export(run: Run, name: _Name, *, out: _Out = None, provider: _Provider = "onnx", device: _Device = "cuda:0") -> int:
    """Export an open_clip model to ONNX and check it against open_clip itself. Needs torch, once; workers do not.

    Its vectors must agree with open_clip's (cosine >= 0.9999), or nothing is written. With --provider tensorrt the
    engines of a model that is exported already (or just was) are built and checked, so that workers start at once.
    """
    from clipfleet.models import build_engines, export_model, find_bundle, load_bundle  # noqa: PLC0415

    if provider not in {"onnx", "tensorrt"}:
        raise CliError(f"--provider is onnx or tensorrt, not {provider!r}", exit_code=Exit.USAGE)
    known = find_bundle(name) if provider == "tensorrt" and out is None else None
    if known is None:
        run.out.step(f"exporting {name}; this takes a minute or two")
    bundle = export_model(name, out=out) if known is None else load_bundle(known)
    told = {"name": name, "ok": True, "path": str(bundle.path), "fingerprint": bundle.config.fingerprint}
    if provider == "tensorrt":
        run.out.step(f"building TensorRT engines of {name} on {device}; this takes minutes")
        told["engines"] = str(build_engines(bundle, device=device))
    if run.out.json_lines:
        run.out.json(told)
    else:
        kept = f"\nIts engines are in {told['engines']}" if "engines" in told else ""
        run.out.line(f"{name} is in {bundle.path}{kept}\nServe it with: clipfleet worker --model {out or name}")
    return 0


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    if "error" in model:
        return ("(broken)", "", "", model["error"], model["path"])
    size = f"{model['bytes'] / 2**20:.1f}"
    return (model["name"], str(model["dimension"]), size, model["fingerprint"][:12], model["path"])
