"""The commands mqadmin of 4.9 and of 5.5 has."""

from __future__ import annotations

_4_9 = """
    addWritePerm allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT cleanExpiredCQ
    cleanUnusedTopic cloneGroupOffset clusterAclConfigVersion clusterList clusterRT consumeMessage
    consumerConnection consumerProgress consumerStatus deleteAclConfig deleteExpiredCommitLog
    deleteKvConfig deleteSubGroup deleteTopic exportConfigs exportMetadata exportMetrics
    getAclConfig getBrokerConfig getConsumerConfig getNamesrvConfig printMsg printMsgByQueue
    producer producerConnection queryCq queryMsgById queryMsgByKey queryMsgByOffset
    queryMsgByUniqueKey queryMsgTraceById resetOffsetByTime sendMessage sendMsgStatus
    skipAccumulatedMessage startMonitoring statsAll topicClusterList topicList topicRoute
    topicStatus updateAclConfig updateBrokerConfig updateGlobalWhiteAddr updateKvConfig
    updateNamesrvConfig updateOrderConf updateSubGroup updateTopic updateTopicPerm wipeWritePerm
"""
_5_5 = """
    addBroker checkRocksdbCqWriteProgress cleanBrokerMetadata copyAcl copyUser createAcl createUser
    deleteAcl deleteUser dumpCompactionLog electMaster exportMetadataInRocksDB exportPopRecord
    getAcl getBrokerEpoch getBrokerLiteInfo getColdDataFlowCtrInfo getControllerConfig
    getControllerMetaData getLiteClientInfo getLiteGroupInfo getLiteTopicInfo getParentTopicInfo
    getSyncStateSet getUser haStatus listAcl listUser remappingStaticTopic
    removeBroker removeColdDataFlowCtrGroupConfig resetMasterFlushOffset rocksDBConfigToJson
    setCommitLogReadAheadMode setConsumeMode switchTimerEngine triggerLiteDispatch updateAcl
    updateColdDataFlowCtrGroupConfig updateControllerConfig updateStaticTopic updateSubGroupList
    updateTopicList updateUser
"""
OF_4_9 = frozenset(_4_9.split())
OF_5_5 = {name for name in OF_4_9 if "Acl" not in name and "White" not in name} | {*_5_5.split()}
"""What the help of mqadmin 4.9.7 and 5.5.0 lists; test_mqadmin_lists asks them."""
