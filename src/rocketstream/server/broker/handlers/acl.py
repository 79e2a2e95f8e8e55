"""Accounts seen and changed by request: codes 50 to 54.

Without accounts every such request is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from rocketstream.errors import ConfigurationError, StoreError
from rocketstream.protocol.bodies import DataVersion
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from rocketstream.server.broker.acl import AclFiles
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import Account
from rocketstream.server.broker.core.acl.edits import (
    AccountUpdate,
    Document,
    delete_account,
    set_white_addresses,
    update_account,
)
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

_FIELDS = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip


class AclHandlers:
    """Operators' requests about accounts."""

    def __init__(self, controller: BrokerController, files: AclFiles) -> None:
        self._controller = controller
        self._files = files

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.update,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.white_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.configs,
        }

    def update(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 50: answered once the file is on the disk."""
        header = request.header(CreateAccessConfigRequestHeader)
        update = AccountUpdate(
            access_key=header.access_key,
            secret_key=header.secret_key,
            white_remote_address=header.white_remote_address,
            admin=header.admin,
            default_topic_perm=header.default_topic_perm,
            default_group_perm=header.default_group_perm,
            topic_perms=_split(header.topic_perms),
            group_perms=_split(header.group_perms),
        )
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        try:
            update.check()
        except ConfigurationError as error:
            raise refusal(failed, error.message) from None
        path = self._files.home_of(header.access_key) or self._files.path
        now_ms = self._controller.now_ms()
        return (
            yield from self._edited(path, lambda old: update_account(old, update, now_ms), failed)
        )

    def delete(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 51: answered once the file is on the disk."""
        key = request.header(DeleteAccessConfigRequestHeader).access_key
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        path = self._files.home_of(key)
        if path is None:
            text = f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."
            raise refusal(failed, text)
        now_ms = self._controller.now_ms()
        return (yield from self._edited(path, lambda old: delete_account(old, key, now_ms), failed))

    def white_addresses(self, _: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 53: for the broker's own account files only (upstream: any file below its home)."""
        header = request.header(UpdateGlobalWhiteAddrsConfigRequestHeader)
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        given = header.acl_file_full_path
        path = Path(given) if given else self._files.path
        known = [name for name, _ in self._files.documents]
        if str(path) not in known:
            text = (
                f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed: "
                f"{given!r} is not one of the files of accounts, {', '.join(known)}"
            )
            raise refusal(failed, text)
        wanted = _split(header.global_white_addrs) or []
        now_ms = self._controller.now_ms()
        return (
            yield from self._edited(
                path, lambda old: set_white_addresses(old, wanted, now_ms), failed
            )
        )

    def _edited(
        self, path: Path, change: Callable[[object], Document], failed: ResponseCode
    ) -> Generator[Any, None, RemotingCommand]:
        try:
            yield from self._files.editing(path, change)
        except (ConfigurationError, StoreError) as error:
            raise refusal(failed, error.message) from error
        return ok()

    def version(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 52: how often each file was changed by request, and when last."""
        config = self._controller.config
        versions = {
            path: {"counter": document.counter, "timestamp": document.timestamp}
            for path, document in self._files.documents
        }
        mine = versions.get(str(self._files.path), {})
        header = GetBrokerAclConfigResponseHeader(
            version=DataVersion(**mine).encode().decode(),
            all_acl_file_version=json.dumps(versions),
            broker_name=config.broker_name,
            broker_addr=self._controller.address,
            cluster_name=config.cluster_name,
        )
        return ok(header)

    def configs(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Code 54: all accounts including their secrets, as upstream answers."""
        white: list[str] = []
        accounts: dict[str, dict[str, Any]] = {}
        for _path, document in self._files.documents:
            white += document.white
            for account in document.accounts:
                accounts.setdefault(account.access_key, _shown(account))
        body = {"globalWhiteAddrs": white, "plainAccessConfigs": list(accounts.values())}
        return ok(body=json.dumps(body).encode())


def _shown(account: Account) -> dict[str, Any]:
    settings = account.settings
    return {name: settings[name] for name in _FIELDS if settings.get(name) is not None}


def _split(text: str | None) -> list[str] | None:
    """Split as UtilAll.split does, but an empty text has no entries instead of an empty one."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]
