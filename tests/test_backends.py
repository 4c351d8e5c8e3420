"""What sandboxes must not see: results, tasks with their solutions, the model, this program, the user's files."""

from pathlib import Path

from driving import PASSES, REPOSITORY, Site
from rolloutgen.backends import hidden_paths
from rolloutgen.config import load_config
from rolloutgen.plan import make_plan


def test_no_sandbox_sees_results_tasks_or_the_program(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.tasks({"a": PASSES})
    settings = load_config(site.config).settings
    hidden = hidden_paths(settings, make_plan(settings, repair=False).task_folders())
    assert hidden >= {site.results, tmp_path / "tasks", tmp_path, REPOSITORY, Path.home()}


def test_very_many_folders_of_tasks_are_hidden_by_their_parents_and_no_system_folder_is(tmp_path: Path) -> None:
    site = Site(tmp_path)
    settings = load_config(site.config).settings
    plain = hidden_paths(settings, ())
    few = hidden_paths(settings, {Path(f"/data/set{i}") for i in range(50)})
    assert few - plain == {Path(f"/data/set{i}") for i in range(50)}
    many = hidden_paths(settings, {Path(f"/data/set{i % 3}/part{i}") for i in range(500)})
    assert many - plain == {Path(f"/data/set{i}") for i in range(3)}
    assert hidden_paths(settings, {Path("/usr"), Path("/tmp"), Path("/")}) == plain
