"""What differs between a run folder and what is open here is named to the part."""

from __future__ import annotations

import json

from zephon.changes import changed_lock


def test_the_first_part_of_a_lock_that_differs_is_named() -> None:
    ours = {"data": {"a": {"kind": "jsonl", "files": [["x", 1], ["y", 2]]}}, "tokenizer": {}, "plugins": {}}
    same = json.loads(json.dumps(ours))
    assert changed_lock(same, ours) == []
    same["data"]["a"]["files"][1][1] = 3
    same["tokenizer"] = {"file": "abc"}
    assert [str(change) for change in changed_lock(same, ours)] == [
        "data.a.files[1]: the run has ['y', 3], here it is ['y', 2]",
        "tokenizer.file: the run has 'abc', here it is None",
    ]
