"""What ``tests/chaos/test_mutations.py`` removes is still there: its quarter of an hour is not part of every run."""

from __future__ import annotations

import pytest

from chaos.test_mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[one.mechanism for one in MUTATIONS])
def test_given_a_mechanism_that_is_removed_on_purpose_then_it_is_where_it_is_looked_for(mutation: Mutation) -> None:
    found = (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old)
    assert found == 1, f"{mutation.file} has changed: say anew in tests/chaos/test_mutations.py how to remove it"
    assert (ROOT / mutation.test.split()[0].partition("::")[0]).exists()
