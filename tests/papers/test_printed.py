"""Which tables print numbers of an algorithm."""

from __future__ import annotations

from fedkeel.papers.printed import printed_in


def test_counts_of_feddc_by_hand() -> None:
    """FedDC's Table 1 has 5 data sets × 6 columns, Table 2 three columns, Table 3 17 settings × 2."""
    found = {one.exhibit.id: one.numbers for one in printed_in("feddc")}
    assert found == {"feddc.table1": 30, "feddc.table2": 3, "feddc.table3": 34}


def test_an_algorithm_that_no_paper_printed_has_none() -> None:
    assert printed_in("fedadam") == []
