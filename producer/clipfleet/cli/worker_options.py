"""The flags of a worker, shared by ``worker`` and ``up``; what is left out is the environment's or the default."""

from __future__ import annotations

from typing import Annotated, Final

import typer

# WorkerConfig's field, and how its flag is spelled: `up` hands these on to its worker.
HANDED_ON: Final = {
    "model": "--model",
    "max_batch_size": "--max-batch-size",
    "max_delay_ms": "--max-delay-ms",
    "bulk_batch_ms": "--bulk-batch-ms",
    "capacity": "--capacity",
    "processes": "--processes",
    "devices": "--devices",
    "providers": "--providers",
}
# WorkerConfig's fields whose flag is taken as it is; the others are parsed first.
PLAIN_FLAGS: Final = frozenset(
    {
        *HANDED_ON,
        *("bulk_capacity", "lease_ms", "max_deliveries", "max_run_s", "grace_s", "decode_threads", "threads"),
        *("max_request_bytes", "max_queue_bytes", "allow_urls", "replace", "set_limits"),
    }
) - {"providers"}

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="demo, a bundle directory, or an open_clip name such as ViT-B-32/laion2b_s34b_b79k. Default: demo.",
        show_default=False,
    ),
]
Pipelines = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline",
        metavar="MODULE:NAME",
        help="Serve a pipeline of your own too, under its name (or AS=MODULE:NAME); repeatable.",
        show_default=False,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--max-batch-size",
        help="Most items of one model call. Default: on a CPU as many as are worth it, as it measures; 64 at most.",
        show_default=False,
    ),
]
Delay = Annotated[
    str | None,
    typer.Option(
        "--max-delay-ms",
        metavar="MS|auto",
        help="How long the oldest item may wait for company; auto: only where it pays. Default: 10.",
        show_default=False,
    ),
]
BulkBatch = Annotated[
    float | None,
    typer.Option(
        "--bulk-batch-ms",
        help="How long a batch of bulk requests may take: live queries wait for one at most. Default: 100.",
        show_default=False,
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        "--capacity", help="Most requests on the queue; the next one is refused. Default: 10,000.", show_default=False
    ),
]
BulkCapacity = Annotated[
    int | None,
    typer.Option("--bulk-capacity", help="Most of them in the bulk lane. Default: 90 %.", show_default=False),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", min=1, max=256, help="Worker processes. Default: one per device.", show_default=False),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="LIST",
        help="auto (every visible GPU, else the CPU), cpu, cuda:0,cuda:1. Default: auto.",
        show_default=False,
    ),
]
Providers = Annotated[
    str | None,
    typer.Option(
        "--providers",
        metavar="LIST",
        help="How to run the model, in order of preference. Default: tensorrt,cuda,cpu,torch. Besides these torch-bf16:"
        " weights converted to bfloat16, which some CPUs run several times quicker.",
        show_default=False,
    ),
]
Lease = Annotated[
    int | None,
    typer.Option(
        "--lease-ms",
        help="After how long a dead worker's requests are run elsewhere. Default: 10,000.",
        show_default=False,
    ),
]
Deliveries = Annotated[
    int | None,
    typer.Option(
        "--max-deliveries",
        help="How often a request is run at most, when its worker dies each time. Default: 3.",
        show_default=False,
    ),
]
RunS = Annotated[
    float | None,
    typer.Option("--max-run-s", help="A call older than this is taken for hung. Default: 120.", show_default=False),
]
Grace = Annotated[
    float | None, typer.Option("--grace-s", help="How long a shutdown may take. Default: 10.", show_default=False)
]
Decode = Annotated[
    int | None,
    typer.Option(
        "--decode-threads",
        help="Threads that decode pictures, per process. Default: as many as it has cores.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="CPU threads of one model call. Default: one, with a call on each core, and all for one that runs alone.",
        show_default=False,
    ),
]
RequestBytes = Annotated[
    int | None, typer.Option("--max-request-bytes", help="Largest request. Default: 8 MiB.", show_default=False)
]
QueueBytes = Annotated[
    int | None,
    typer.Option("--max-queue-bytes", help="Most payload bytes on the queue. Default: 256 MiB.", show_default=False),
]
Roots = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-root", metavar="NAME=DIR", help="Let producers name files below DIR; repeatable.", show_default=False
    ),
]
Urls = Annotated[
    bool | None,
    typer.Option("--allow-urls/--no-allow-urls", help="Fetch pictures by URL. Default: no.", show_default=False),
]
Replace = Annotated[
    bool | None,
    typer.Option("--replace", help="Take the queue over for another model, after it has drained.", show_default=False),
]
Set = Annotated[
    bool | None,
    typer.Option("--set", help="Write these limits over those that the fleet agreed on.", show_default=False),
]
