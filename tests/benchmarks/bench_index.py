"""Index of a million rows: validate, select by INSTANCES_FILE and write the filtered index, against pandas.

    python tests/benchmarks/bench_index.py [--rows 1000000]

pandas is the peer as people use it: read, filter by id, write; it neither validates nor keeps the schema.
"""

import argparse
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from measure import fresh, show, show_ratio

OURS = """
import json, sys
from pathlib import Path
from rolloutgen.index import Index, select, write_filtered
index, instances, output = map(Path, sys.argv[1:])
shard = select(Index.read(index), instances)
chosen = {name for number, name in enumerate(shard.instances.ids()) if number % 3 == 0}
print(json.dumps({"shard": len(shard), "written": write_filtered(shard, chosen, output)}))
"""
PANDAS = """
import json, sys
import pandas as pd
index, instances, output = sys.argv[1:]
table = pd.read_parquet(index)
ids = table["extra_info"].str["instance_id"]
wanted = set(open(instances).read().split())
chosen = {name for number, name in enumerate(ids[ids.isin(wanted)]) if number % 3 == 0}
kept = table[ids.isin(chosen)]
kept.to_parquet(output)
print(json.dumps({"written": len(kept)}))
"""


def make(path: Path, rows: int) -> None:
    """An index like the real ones: relative task paths, prompt content equal to them."""
    ids = [f"owner__repository-{row:07d}" for row in range(rows)]
    tasks = [f"tasks/{name}" for name in ids]
    one_each = pa.array(range(rows + 1), pa.int32())
    message = pa.StructArray.from_arrays([pa.array(["user"] * rows), pa.array(tasks)], ["role", "content"])
    reward = pa.StructArray.from_arrays(
        [pa.array(["rule"] * rows), pa.nulls(rows, pa.string())], ["style", "ground_truth"]
    )
    extra = pa.StructArray.from_arrays(
        [pa.array(tasks), pa.array(ids), pa.array(["harbor"] * rows)],
        ["harbor_task_path", "instance_id", "data_source"],
    )
    columns = {"prompt": pa.ListArray.from_arrays(one_each, message), "reward_model": reward, "extra_info": extra}
    pq.write_table(pa.table(columns), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        index, instances = Path(folder, "index.parquet"), Path(folder, "instances.txt")
        make(index, rows)
        instances.write_text("".join(f"owner__repository-{row:07d}\n" for row in range(0, rows, 2)))
        ours = fresh(OURS, index, instances, Path(folder, "ours.parquet"))
        peer = fresh(PANDAS, index, instances, Path(folder, "pandas.parquet"))
    show("rolloutgen", ours)
    show("pandas", peer)
    show_ratio(ours, peer, "pandas")


if __name__ == "__main__":
    main()
