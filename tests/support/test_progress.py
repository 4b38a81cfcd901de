"""Progress where there is no terminal."""

import time

from refgeo.support import progress


def test_a_piece_that_takes_long_goes_on_telling_and_the_time_left_is_that_of_the_piece(monkeypatch, capsys):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.02)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.02)
    with progress.show_progress("searching") as tell:
        tell(0, 4, "the first")
        time.sleep(0.2)
        tell(2, 4, "the third")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("searching the first: 0 of 4, 0 s") >= 3
    assert lines.count("searching the third: 2 of 4, 0 s, about 0 s left") >= 3
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_is_done_at_once_is_not_told(capsys):
    with progress.show_progress("searching") as tell:
        tell(0, 4, "the first")
    assert capsys.readouterr().err == ""
