"""The subscription data by which broker and consumer filter, made of an expression.

Pure: text in, ``SubscriptionData`` out (C-99 to C-102, FilterAPI upstream).
"""

from __future__ import annotations

from rocketstream.errors import SubscriptionError
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.sql92 import compile_expression
from rocketstream.protocol.tag_hash import java_hash

SUB_ALL = "*"
EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"

_JAVA_SPACE = "".join(map(chr, range(0x21)))
"""The characters ``String.trim`` removes."""


def build_subscription(
    topic: str, expression: str | None, version_ms: int, expression_type: str = EXPRESSION_TAG
) -> SubscriptionData:
    """Return the subscription of a topic, as a user of ours may give it.

    Arguments are those of ``parse_subscription``.

    Raises:
        SubscriptionError: as ``parse_subscription``; or blanks alone, which brokers take and which
            select nothing (C-100).
    """
    made = parse_subscription(topic, expression, version_ms, expression_type)
    if made.expression_type == EXPRESSION_TAG and made.sub_string != SUB_ALL and not made.tags_set:
        raise _no_tag(made.sub_string)
    return made


def parse_subscription(
    topic: str, expression: str | None, version_ms: int, expression_type: str = EXPRESSION_TAG
) -> SubscriptionData:
    """Return the subscription of a topic, as Apache's programs take it.

    Args:
        topic: topic to subscribe.
        expression: ``*``, empty or None for all; tags joined by ``||``; a condition for SQL92.
        version_ms: creation time, ms; a later one replaces an earlier one at the broker.
        expression_type: TAG or SQL92.

    Raises:
        SubscriptionError: the expression is separators alone, the condition is blank or does not
            compile, or the type is unknown.
    """
    if expression is not None and not isinstance(expression, str):
        raise SubscriptionError(
            "subscription exception: an expression is a str, for several tags 'TagA || TagB', "
            f"not {expression!r}"
        )
    if expression_type == EXPRESSION_SQL92:
        if not expression or expression.isspace():
            raise SubscriptionError("subscription exception: the SQL92 expression is blank")
        compile_expression(expression)
        return SubscriptionData(topic, expression, set(), set(), version_ms, EXPRESSION_SQL92)
    if expression_type != EXPRESSION_TAG:
        raise SubscriptionError(
            f"subscription exception: expression_type must be TAG or SQL92, not "
            f"{expression_type!r}",
            expression_type=expression_type,
        )
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, set(), set(), version_ms)
    pieces = [piece for piece in expression.split("||") if piece]
    if not pieces:
        raise _no_tag(expression)
    tags = {tag for piece in pieces if (tag := piece.strip(_JAVA_SPACE))}
    return SubscriptionData(topic, expression, tags, {java_hash(tag) for tag in tags}, version_ms)


def _no_tag(expression: str) -> SubscriptionError:
    return SubscriptionError(
        f"subscription exception: {expression!r} names no tag; give TagA || TagB, or * for all",
        expression=expression,
    )


def tags_hint(tags: str) -> str | None:
    """Return the hint for a tag expression, as ``subscription_hint`` does."""
    return subscription_hint(build_subscription("", tags, 0))


def subscription_hint(subscription: SubscriptionData) -> str | None:
    """Return a hint where tags were probably not meant as they are taken; None where they were.

    A tag's name may have a comma, a single ``|`` or be a condition, which producers send and
    brokers accept, so none of it is an error.
    """
    tags = sorted(subscription.tags_set)
    given = subscription.sub_string
    for joint, its_name in ((",", "comma"), ("|", "single |")):
        if any(joint in tag for tag in tags):
            pieces = [piece.strip(_JAVA_SPACE) for tag in tags for piece in tag.split(joint)]
            meant = " || ".join(dict.fromkeys(filter(None, pieces)))
            return (
                f"the {its_name} in {given!r} is taken for a part of a tag's name; several tags "
                f"are joined by ||, as in {meant!r}"
            )
    if any(_OF_CONDITIONS.intersection(tag) for tag in tags) and _compiles(given):
        return (
            f"{given!r} is taken for the name of a tag; a condition on properties is given as "
            f"MessageSelector.by_sql({given!r})"
        )
    return None


_OF_CONDITIONS = frozenset("<>= ")
"""Characters that every condition has, and the name of a tag hardly ever."""


def _compiles(text: str) -> bool:
    try:
        compile_expression(text)
    except SubscriptionError:
        return False
    return True
