"""Every kind of body and header, and bodies with the text fastjson writes for them."""

from __future__ import annotations

from rocketstream.model import MessageQueue
from rocketstream.protocol import bodies, headers
from rocketstream.protocol.bodies import (
    Body,
    BrokerData,
    CheckClientRequestBody,
    ClusterInfo,
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    DataVersion,
    GetConsumerListByGroupResponseBody,
    GetConsumerStatusBody,
    GroupList,
    HeartbeatData,
    KVTable,
    LiteOffsetData,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    OffsetMovedEvent,
    OffsetWrapper,
    ProcessQueueInfo,
    ProducerConnection,
    ProducerData,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueData,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.bodies.admin import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    ConsumeStatus,
    ProducerInfo,
    QueueTimeSpan,
)
from rocketstream.protocol.headers import Header

CLIENT = "10.0.0.9@4242"
MQ0 = MessageQueue("T1", "broker-a", 0)
MQ1 = MessageQueue("T1", "broker-a", 1)
MQ0_TEXT = '{"brokerName":"broker-a","queueId":0,"topic":"T1"}'
MQ1_TEXT = '{"brokerName":"broker-a","queueId":1,"topic":"T1"}'
VERSION = DataVersion(7, 1700000000000)
VERSION_TEXT = '{"counter":7,"timestamp":1700000000000}'
T1 = TopicConfig("T1", 8, 8)
T1_TEXT = (
    '{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T1",'
    '"topicSysFlag":0,"writeQueueNums":8}'
)
TOPICS = TopicConfigSerializeWrapper({"T1": T1}, VERSION)
TOPICS_TEXT = f'{{"dataVersion":{VERSION_TEXT},"topicConfigTable":{{"T1":{T1_TEXT}}}}}'
SUB = SubscriptionData("T1", "TagA || TagB", {"TagA", "TagB"}, {2598919, 2598920}, 1700000000001)
SUB_TEXT = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG",'
    '"subString":"TagA || TagB","subVersion":1700000000001,"tagsSet":["TagA","TagB"],"topic":"T1"}'
)
GROUP = SubscriptionGroupConfig("cg")
GROUP_TEXT = (
    '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"groupName":"cg","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
    '"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)
CONNECTION = Connection(CLIENT, "10.0.0.9:53211", "JAVA", 409)
CONNECTION_TEXT = (
    '{"clientAddr":"10.0.0.9:53211","clientId":"10.0.0.9@4242","language":"JAVA","version":409}'
)
STATS = ConsumeStats({MQ0: OffsetWrapper(100, 90, 1700000000000)}, 0.5)
STATS_TEXT = (
    '{"consumeTps":0.5,"offsetTable":{' + MQ0_TEXT + ':{"brokerOffset":100,"consumerOffset":90,'
    '"lastTimestamp":1700000000000}}}'
)
CLUSTER_TEXT = (
    '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
    '"cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
)
RUNNING_TEXT = (
    '{"mqTable":{' + MQ0_TEXT + ':{"cachedMsgCount":0,"cachedMsgMaxOffset":0,'
    '"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,'
    '"lastConsumeTimestamp":0,"lastLockTimestamp":0,"lastPullTimestamp":0,"locked":false,'
    '"transactionMsgCount":0,"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,'
    '"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY",'
    '"PROP_CONSUMEORDERLY":"false"},"statusTable":{"T1":{"consumeFailedMsgs":0,'
    '"consumeFailedTPS":0.0,"consumeOKTPS":0.0,"consumeRT":0.0,"pullRT":1.5,"pullTPS":0.0}},'
    '"subscriptionSet":[' + SUB_TEXT + "]}"
)
SAMPLES: list[tuple[Body, str]] = [
    (VERSION, VERSION_TEXT),
    (
        HeartbeatData(
            CLIENT,
            [ProducerData("pg")],
            [
                ConsumerData(
                    "cg",
                    "CONSUME_PASSIVELY",
                    "CLUSTERING",
                    "CONSUME_FROM_LAST_OFFSET",
                    [SUB],
                    False,
                )
            ],
        ),
        '{"clientID":"10.0.0.9@4242","consumerDataSet":[{"consumeFromWhere":'
        '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"cg",'
        '"messageModel":"CLUSTERING","subscriptionDataSet":[' + SUB_TEXT + '],"unitMode":false}],'
        '"producerDataSet":[{"groupName":"pg"}]}',
    ),
    (SUB, SUB_TEXT),
    (
        SubscriptionData("T1", sub_version=1700000000001),
        '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
        '"subVersion":1700000000001,"tagsSet":[],"topic":"T1"}',
    ),
    (
        SubscriptionData("T1", "a > 1", sub_version=1700000000001, expression_type="SQL92"),
        '{"classFilterMode":false,"codeSet":[],"expressionType":"SQL92","subString":"a > 1",'
        '"subVersion":1700000000001,"tagsSet":[],"topic":"T1"}',
    ),
    (
        CheckClientRequestBody(CLIENT, "cg", SUB),
        '{"clientId":"10.0.0.9@4242","group":"cg","subscriptionData":' + SUB_TEXT + "}",
    ),
    (
        GetConsumerListByGroupResponseBody([CLIENT, "10.0.0.10@77"]),
        '{"consumerIdList":["10.0.0.9@4242","10.0.0.10@77"]}',
    ),
    (
        LockBatchRequestBody("cg", CLIENT, {MQ0}),
        '{"clientId":"10.0.0.9@4242","consumerGroup":"cg","mqSet":[' + MQ0_TEXT + "]}",
    ),
    (
        UnlockBatchRequestBody("cg", CLIENT, {MQ0}),
        '{"clientId":"10.0.0.9@4242","consumerGroup":"cg","mqSet":[' + MQ0_TEXT + "]}",
    ),
    (LockBatchResponseBody({MQ0}), '{"lockOKMQSet":[' + MQ0_TEXT + "]}"),
    (T1, T1_TEXT),
    (TOPICS, TOPICS_TEXT),
    (
        RegisterBrokerBody(TOPICS),
        '{"filterServerList":[],"topicConfigSerializeWrapper":' + TOPICS_TEXT + "}",
    ),
    (GROUP, GROUP_TEXT),
    (
        SubscriptionGroupWrapper({"cg": GROUP}, VERSION),
        f'{{"dataVersion":{VERSION_TEXT},"subscriptionGroupTable":{{"cg":{GROUP_TEXT}}}}}',
    ),
    (
        ConsumerConnection([CONNECTION], {"T1": SUB}),
        '{"connectionSet":[' + CONNECTION_TEXT + '],"consumeFromWhere":'
        '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":'
        '"CLUSTERING","subscriptionTable":{"T1":' + SUB_TEXT + "}}",
    ),
    (ProducerConnection([CONNECTION]), '{"connectionSet":[' + CONNECTION_TEXT + "]}"),
    (
        ProducerTableInfo(
            {"pg": [ProducerInfo(CLIENT, "10.0.0.9:53211", "JAVA", 409, 1700000000000)]}
        ),
        '{"data":{"pg":[{"clientId":"10.0.0.9@4242","language":"JAVA","lastUpdateTimestamp":'
        '1700000000000,"remoteIP":"10.0.0.9:53211","version":409}]}}',
    ),
    (
        ConsumerRunningInfo(
            {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMEORDERLY": "false"},
            [SUB],
            {MQ0: ProcessQueueInfo()},
            {"T1": ConsumeStatus(pull_rt=1.5)},
        ),
        RUNNING_TEXT,
    ),
    (
        ConsumeMessageDirectlyResult(spent_time_mills=3),
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
    ),
    (STATS, STATS_TEXT),
    (
        ConsumeStatsList("10.0.0.1:10911", [{"cg": [STATS]}], 10),
        '{"brokerAddr":"10.0.0.1:10911","consumeStatsList":[{"cg":[' + STATS_TEXT + "]}],"
        '"totalDiff":10}',
    ),
    (
        TopicStatsTable({MQ0: TopicOffset(0, 100, 1700000000000)}),
        '{"offsetTable":{' + MQ0_TEXT + ':{"lastUpdateTimestamp":1700000000000,"maxOffset":100,'
        '"minOffset":0}}}',
    ),
    (
        ResetOffsetBody({MQ1: 6, MQ0: 5}),
        '{"offsetTable":{' + MQ1_TEXT + ":6," + MQ0_TEXT + ":5}}",
    ),
    (
        GetConsumerStatusBody({MQ0: 6}),
        '{"consumerTable":{},"messageQueueTable":{' + MQ0_TEXT + ":6}}",
    ),
    (
        GetConsumerStatusBody({}, {CLIENT: {MQ0: 6}}),
        '{"consumerTable":{"10.0.0.9@4242":{' + MQ0_TEXT + ':6}},"messageQueueTable":{}}',
    ),
    (
        LiteSubscriptionCtlRequestBody(
            [
                LiteSubscriptionData(
                    "PARTIAL_ADD", "c", "g", {"b", "a"}, LiteOffsetData("POLICY", 1), "T"
                )
            ]
        ),
        # written by Apache's 5.5.0
        '{"subscriptionSet":[{"action":"PARTIAL_ADD","clientId":"c","group":"g","liteTopicSet":'
        '["a","b"],"offsetOption":{"type":"POLICY","value":1},"topic":"T","version":0}]}',
    ),
    (
        LiteSubscriptionData("COMPLETE_REMOVE", "c", "g", set(), None, "T"),
        '{"action":"COMPLETE_REMOVE","clientId":"c","group":"g","liteTopicSet":[],"topic":"T",'
        '"version":0}',
    ),
    (KVTable({"k": "v"}), '{"table":{"k":"v"}}'),
    (GroupList({"cg"}), '{"groupList":["cg"]}'),
    (TopicList({"T1"}), '{"topicList":["T1"]}'),
    (
        TopicList({"T1"}, "10.0.0.1:10911"),
        '{"brokerAddr":"10.0.0.1:10911","topicList":["T1"]}',
    ),
    (
        QueryCorrectionOffsetBody({0: 5, 1: 9223372036854775807}),
        '{"correctionOffsets":{0:5,1:9223372036854775807}}',
    ),
    (
        QueryConsumeTimeSpanBody([QueueTimeSpan(MQ0, 1, 2)]),
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":0,"delayTime":0,"maxTimeStamp":2,'
        '"messageQueue":' + MQ0_TEXT + ',"minTimeStamp":1}]}',
    ),
    (
        QueryConsumeQueueResponseBody(SUB, "x", [ConsumeQueueData(0, 214, 2598919)], 4, 0),
        '{"filterData":"x","maxQueueIndex":4,"minQueueIndex":0,"queueData":[{"eval":false,'
        '"physicOffset":0,"physicSize":214,"tagsCode":2598919}],"subscriptionData":'
        + SUB_TEXT
        + "}",
    ),
    (
        BrokerStatsData(BrokerStatsItem(1, 2.0, 0.5)),
        '{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        '"statsMinute":{"avgpt":0.5,"sum":1,"tps":2.0}}',
    ),
    (
        OffsetMovedEvent("cg", MQ0, 0, 1),
        '{"consumerGroup":"cg","messageQueue":' + MQ0_TEXT + ',"offsetNew":1,"offsetRequest":0}',
    ),
    (
        ClusterInfo(
            {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.1:10911"})},
            {"DefaultCluster": ["broker-a"]},
        ),
        CLUSTER_TEXT,
    ),
]
BODIES: list[type[Body]] = [
    value
    for value in vars(bodies).values()
    if isinstance(value, type) and issubclass(value, Body) and value is not Body
]
ROUTE = TopicRouteData(
    [QueueData("broker-a", 4, 4, 6, 0)],
    [BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})],
)

HEADERS: list[type[Header]] = [
    value
    for value in vars(headers).values()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
]
