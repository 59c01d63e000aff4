"""What one indexing run of the command line shows: each failure, where they all are, and the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.cli.failures import Failures
    from clipfleet.cli.progress import Progress
    from clipfleet.cli.reconciling import Verdict
    from clipfleet.cli.run import Run
    from clipfleet.index import Outcome, Report

__all__ = ["Shown", "summary"]

_SHOWN_FAILURES: Final = 10


class Shown:
    """Shows each outcome, and the first few failures where no program reads."""

    def __init__(self, run: Run, progress: Progress, failures: Failures) -> None:
        self.indexed = 0
        self.failed = 0
        self._out = run.out
        self._progress = progress
        self._failures = failures

    def add(self, outcome: Outcome) -> None:
        """One more."""
        from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415

        error = outcome.error
        # What an earlier run has done it has told as well; a duplicate is told in a file, when it is sure.
        quiet = outcome.earlier or bool(outcome.same_as)
        self._progress.advance(failed=error is not None, earlier=quiet)
        if error is None:
            self.indexed += not quiet
            if self._out.json_lines and not quiet:
                self._out.json({"input": outcome.path, "ok": True, "id": outcome.id})
            return
        self.failed += 1
        line = {"input": outcome.path, "ok": False, "id": outcome.id, "error": failure_json(error)}
        self._failures.write(line)
        if self._out.json_lines:
            self._out.json(line)
        elif self.failed <= _SHOWN_FAILURES:
            self._out.failed(outcome.path, error)

    def end(self) -> None:
        """Say where the failures are that were not shown."""
        more = self.failed - _SHOWN_FAILURES
        if more > 0 and not self._out.json_lines:
            where = "--failures FILE" if self._failures.path is None else self._failures.path
            self._out.note(f"and {more:,} more; {where} lists them all")


def summary(run: Run, report: Report, where: str, verdicts: Sequence[Verdict], switch: Verdict | None) -> None:
    """Say what became of all: of the pictures, of the store, of the alias."""
    codes = ", ".join(f"{count:,} {code}" for code, count in report.failed.most_common())
    earlier = f", {report.earlier:,} of them earlier," if report.earlier else ""
    text = (
        f"{report.indexed + report.earlier:,} of {counted(report.found, 'picture')} indexed into {where}{earlier} in"
        f" {report.seconds:.1f} s"
        + (f" ({report.rate:.1f}/s)" if report.rate else "")
        + (f"; failed: {codes}" if codes else "")
    )
    if report.stopped:
        text += f"; stopped: {report.stopped}"
    if not report.found:
        text = "no pictures found"
    if report.incomplete:
        text += f"; incomplete: {', '.join(report.incomplete[:_SHOWN_FAILURES])}"
    if report.duplicates:
        text += f"; {counted(report.duplicates, 'duplicate')} not sent again"
    if report.skipped:
        text += f"; {counted(report.skipped, 'other file')} skipped"
    said = [verdict.text for verdict in [*verdicts, *([] if switch is None else [switch])]]
    text += "".join(f"; {each}" for each in said)
    if run.out.json_lines:
        run.out.log().info(
            "indexed",
            indexed=report.indexed,
            earlier=report.earlier,
            found=report.found,
            failed={str(code): count for code, count in report.failed.items()},
            skipped=report.skipped,
            duplicates=report.duplicates,
            incomplete=report.incomplete,
            seconds=round(report.seconds, 2),
            stopped=report.stopped,
            said=said,
            reconciled=verdicts[-1].agrees if verdicts else None,
            **({} if switch is None else {"switched": switch.agrees}),
        )
    else:
        run.out.line(text)
