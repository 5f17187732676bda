"""The page of the benchmarks: rows of some of them are written anew, the others stay."""

from benchmarks.__main__ import write

COLUMNS = ["what", "ours", "peer", "theirs", "ratio", "target"]


def test_rows_of_one_benchmark_take_the_place_of_the_earlier_ones(tmp_path):
    page = tmp_path / "page.md"
    first = [
        ["a", "1 ms", "x", "2 ms", "2", ">= 1"],
        ["a", "1 ms", "y", "3 ms", "3", ""],
        ["b", "5", "x", "5", "1", ""],
    ]
    write(page, COLUMNS, first, [])
    before = page.read_text()
    write(page, COLUMNS, [["a", "4 ms", "y", "8 ms", "2", ""], ["c", "1", "z", "1", "1", ""]], ["messages"])
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert rows[:2] == [line for line in before.splitlines() if line.startswith("| ")][:2]
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == ["a", "a", "b", "c"]
    assert rows[2] == "| a | 1 ms | x | 2 ms | 2 | >= 1 |"
    assert rows[3] == "| a | 4 ms | y | 8 ms | 2 |  |"
    for _ in range(2):
        write(page, COLUMNS, [["c", "2", "z", "1", "1", ""]], ["messages"])
    assert page.read_text().count("Rows of `messages`: commit") == 1
    assert page.read_text().count("All rows but those below: Python") == 1
