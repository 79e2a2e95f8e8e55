"""Whether what a name server says of a topic can be used at all.

Law: looks and refuses; what a route means is ``core.routes``'.
"""

from __future__ import annotations

from rocketstream.client.core.routes import check_sizes, publish_info
from rocketstream.errors import ConfigurationError, RemoteProtocolError
from rocketstream.protocol.addresses import parse_address
from rocketstream.protocol.bodies import TopicRouteData


def check_route(topic: str, route: TopicRouteData) -> None:
    """Check that a route can be used, before anything of it is.

    Raises:
        RemoteProtocolError: impossible numbers of queues, addresses that cannot be read, an order
            configuration that is not ``broker:count;…``.
    """
    check_sizes(topic, route)
    publish_info(topic, route)
    for broker in route.broker_datas:
        for address in broker.broker_addrs.values():
            try:
                parse_address(address)
            except ConfigurationError as error:
                raise RemoteProtocolError(
                    f"the route of topic {topic!r} gives broker {broker.broker_name!r} the address "
                    f"{address!r}, which is not host:port"
                ) from error
