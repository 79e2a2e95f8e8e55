"""Bytes observed from 4.9.8 (wire-and-storage, marked there), for use as test vectors."""

from __future__ import annotations

PROPERTIES = "UNIQ_KEY\x017F000001\x02WAIT\x01true\x02TAGS\x01TagA"

SEND_V2_EXT = {
    "a": "pg",
    "b": "T1",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": PROPERTIES,
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}

SEND_V2_JSON_HEADER = (
    rb'{"code":310,"extFields":{"a":"pg","b":"T1","c":"TBW102","d":"4","e":"1","f":"0",'
    rb'"g":"1700000000000","h":"0",'
    rb'"i":"UNIQ_KEY\u00017F000001\u0002WAIT\u0001true\u0002TAGS\u0001TagA",'
    rb'"j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":9,'
    rb'"serializeTypeCurrentRPC":"JSON","version":409}'
)
SEND_V2_JSON = bytes.fromhex("0000013C00000136") + SEND_V2_JSON_HEADER + b"hi"

SEND_V2_BINARY = bytes.fromhex(
    "000000C9010000C30136000199000000090000000000000000000000AE000161000000027067"
    "000162000000025431000163000000065442573130320001640000000134000165000000013100"
    "016600000001300001670000000D31373030303030303030303030000168000000013000016900"
    "000025554E49515F4B4559013746303030303031025741495401747275650254414753015461674100"
    "016A000000013000016B0000000566616C736500016D0000000566616C736500016E00000008"
    "62726F6B65722D616869"
)

MINIMAL_RESPONSE = (
    bytes.fromhex("000000630000005F")
    + b'{"code":0,"flag":1,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON",'
    + b'"version":409}'
)

BINARY_RESPONSE_HEADER = bytes.fromhex("0000000199000003e9000000010000000000000000")

RECORD_V4 = bytes.fromhex(
    "00000073DAA320A73610A6860000000300000000000000000000000700000000000004000000000000"
    "00018BCFE568000A0000090000CFDB0000018BCFE568050A00000100002A9F00000000000000000000"
    "00000000000568656C6C6F02543100114B455953016B3102544147530154616741"
)

RECORD_V6 = bytes.fromhex(
    "0000008BDAA320A73610A6860000000300000000000000000000000700000000000004000000003000"
    "00018BCFE5680020010DB80000000000000000000000090000CFDB0000018BCFE5680520010DB80000"
    "0000000000000000000100002A9F0000000000000000000000000000000568656C6C6F02543100114B"
    "455953016B3102544147530154616741"
)

BATCH = bytes.fromhex(
    "0000002E0000000000000000000000000000000568656C6C6F001357414954017472756502544147530154616741"
)

REGISTER_COMPRESSED = bytes.fromhex(
    "78DA63606050AF564ACE2FCD2B492D52B232D7512AC9CC4D2D2E49CC2D50B232343740805A06060646"
    "20160E3154B000423385604F3F771FD7F8104777A03053742C00D5B11141"
)
REGISTER_COMPRESSED_CRC = 1789833986
REGISTER_PLAIN_CRC = 2028925275

X200 = b"x" * 200
X200_ZLIB = bytes.fromhex("785EABA8181E0000D0C45DC1")
X200_LZ4 = bytes.fromhex("04224D186070730B0000001F780100AF50787878787800000000")
X200_ZSTD = bytes.fromhex("28B52FFD00584C00001078780100430A6001010000")

# Real exchanges between a 4.9.8 client and broker; ids shortened to what matters.
END_TRANSACTION_EXT = {
    "producerGroup": "pg",
    "bname": "broker-a",
    "commitLogOffset": "1586",
    "msgId": "FD0000000000000000000000000000027A315FFD2B276611F2110000",
    "tranStateTableOffset": "0",
    "commitOrRollback": "8",
    "fromTransactionCheck": "false",
}
PULL_EXT = {
    "queueId": "0",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "suspendTimeoutMillis": "15000",
    "commitOffset": "0",
    "bname": "broker-a",
    "topic": "GoldT",
    "queueOffset": "0",
    "expressionType": "TAG",
    "subVersion": "1795203654796",
    "consumerGroup": "cg",
}
PULL_RESPONSE_EXT = {
    "suggestWhichBrokerId": "0",
    "nextBeginOffset": "4",
    "maxOffset": "4",
    "minOffset": "0",
}
SEND_BACK_EXT = {
    "maxReconsumeTimes": "16",
    "offset": "1381",
    "bname": "broker-a",
    "delayLevel": "0",
    "originTopic": "GoldT",
    "originMsgId": "FD0000000000000000000000000000027A315FFD2B276611F2110000",
    "unitMode": "false",
    "group": "cg",
}

LOCAL_OFFSETS = """{
	"offsetTable":{{
			"brokerName":"broker-a",
			"queueId":1,
			"topic":"TopicA"
		}:7,{
			"brokerName":"broker-a",
			"queueId":0,
			"topic":"TopicA"
		}:12
	}
}"""
