"""What an indexing run says at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.cli.reconciling import Verdict
    from clipfleet.cli.run import Run
    from clipfleet.index import Report

__all__ = ["SHOWN_FAILURES", "tell_summary"]

SHOWN_FAILURES: Final = 10
"""So many are named where nobody reads them all."""


def tell_summary(run: Run, report: Report, where: str, verdicts: Sequence[Verdict]) -> None:
    """For people as a line, for programs as a record of the log."""
    codes = ", ".join(f"{count} {code}" for code, count in report.failed.most_common())
    earlier = f", {report.earlier} of them earlier," if report.earlier else ""
    text = (
        f"{report.indexed + report.earlier} of {report.found} pictures indexed into {where}{earlier} in"
        f" {report.seconds:.1f} s ({report.rate:.1f}/s)" + (f"; failed: {codes}" if codes else "")
    )
    if report.stopped:
        text += f"; stopped: {report.stopped}"
    if not report.found:
        text = "no pictures found"
    if report.incomplete:
        text += f"; incomplete: {', '.join(report.incomplete[:SHOWN_FAILURES])}"
    if report.duplicates:
        text += f"; {report.duplicates} duplicate{'s' if report.duplicates > 1 else ''} not sent again"
    if report.skipped:
        text += f"; {report.skipped} other file{'s' if report.skipped > 1 else ''} skipped"
    text += "".join(f"; {verdict.text}" for verdict in verdicts)
    if run.out.json_lines or not run.out.is_terminal:
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
            said=[verdict.text for verdict in verdicts],
            reconciled=verdicts[-1].agrees if verdicts else None,
        )
    if not run.out.json_lines:
        run.out.line(text)
