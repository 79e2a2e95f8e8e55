"""The requests about brokers, name servers and producers: one method per request code.

Law: a peer's refusal is raised as the error of its code.
"""

from __future__ import annotations

from rocketstream.admin.wire import questions
from rocketstream.admin.wire.asking import Wire
from rocketstream.protocol.bodies import (
    ClusterInfo,
    KVTable,
    ProducerConnection,
    ProducerTableInfo,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetKVListByNamespaceRequestHeader,
    GetProducerConnectionListRequestHeader,
)


class BrokerWire(Wire):
    """Asks single servers about themselves and their producers."""

    def runtime(self, address: str) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO (28) of one broker, by upstream's names."""
        return self._ask(address, questions.RUNTIME)

    def broker_config(self, address: str) -> dict[str, str]:
        """GET_BROKER_CONFIG (26) of one broker, by upstream's names."""
        return self._ask(address, questions.BROKER_CONFIG)

    def namesrv_config(self, address: str) -> dict[str, str]:
        """GET_NAMESRV_CONFIG (319) of one name server."""
        return self._ask(address, questions.NAMESRV_CONFIG)

    def namesrv_settings(self, address: str, namespace: str) -> dict[str, str]:
        """GET_KVLIST_BY_NAMESPACE (219) of one name server."""
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        return KVTable.decode(
            self._body(address, RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        ).table

    def cluster_info_at(self, address: str) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO (106) of one name server."""
        command = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = self._client.request_one_namesrv(address, command, self._timeout_ms)
        return ClusterInfo.decode(bytes(answer.body))

    def producer_connection(self, address: str, group: str) -> ProducerConnection:
        """GET_PRODUCER_CONNECTION_LIST (204) of one broker; refused where the group has none."""
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        return ProducerConnection.decode(self._body(address, code, header))

    def producers(self, address: str) -> ProducerTableInfo:
        """GET_ALL_PRODUCER_INFO (328) of one broker."""
        return ProducerTableInfo.decode(self._body(address, RequestCode.GET_ALL_PRODUCER_INFO))
