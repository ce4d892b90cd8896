"""A sound engine: its output is the target's own, it is faster, and the figures are kept."""


def test_speculation_is_exact(specdec, spec_engine, scenario):
    """Once for each γ of the ini file; the record is what pytest-benchmark keeps."""
    record = specdec(spec_engine, scenario)
    assert record.acceptance.mean_accepted_length.value > 1.5
