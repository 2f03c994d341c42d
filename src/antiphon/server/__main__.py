"""`python -m antiphon.server --bootstrap FILE`: one api-server."""

from antiphon.process import die_with_parent

die_with_parent()

from antiphon.child import run_child  # noqa: E402
from antiphon.server.process import main  # noqa: E402

run_child(main)
