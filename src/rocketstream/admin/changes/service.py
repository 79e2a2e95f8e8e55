"""The service of all changes: each operation and the method that plans it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketstream.admin.changes.transfer import TransferAdmin
from rocketstream.admin.core.steps import ChangePlan


class Changes(TransferAdmin):
    """``Admin.changes``."""

    def _planners(self) -> Mapping[str, Callable[..., ChangePlan]]:
        return {
            "topic.create": self.topic_create_plan,
            "topic.update": self.topic_update_plan,
            "topic.delete": self.topic_delete_plan,
            "group.create": self.group_create_plan,
            "group.update": self.group_update_plan,
            "group.pause": self.group_pause_plan,
            "group.resume": self.group_resume_plan,
            "group.delete": self.group_delete_plan,
            "import": self.import_plan,
        }
