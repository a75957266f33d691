"""Keys, versions and error codes, against the tables of messages and against kio's."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka.apikeys import NEVER, ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode


class ApiKeyTests(SynchronousTestCase):
    """Each key says what the definitions of its messages say."""

    def test_versions(self) -> None:
        """Request and response of a key have the versions that the key has."""
        for key in ApiKey:
            for cls in (key.requestClass, key.responseClass):
                self.assertEqual(tuple(cls._versions), (key.firstVersion, key.lastVersion), key)
                first = cls._flexible.first if cls._flexible.last else NEVER
                self.assertEqual(key.flexibleVersion, first, key)

    def test_names(self) -> None:
        """Numbers and names are Kafka's."""
        for key in ApiKey:
            self.assertEqual(key.name.lower(), api_key_map[key])
            self.assertEqual(key.name.replace("_", ""), key.apiName.upper())

    def test_advertised(self) -> None:
        """Produce is advertised from 0, as by Kafka 4, all others from their first version."""
        self.assertEqual(
            {key for key in ApiKey if key.advertisedVersion != key.firstVersion}, {ApiKey.PRODUCE}
        )
        self.assertEqual(ApiKey.PRODUCE.advertisedVersion, 0)
        self.assertFalse(ApiKey.PRODUCE.isServed(2))
        self.assertTrue(ApiKey.PRODUCE.isServed(13))


class ErrorCodeTests(SynchronousTestCase):
    """The codes are Kafka's."""

    def test_codes(self) -> None:
        """Numbers, names and the retriable ones are those that kio knows."""
        for theirs in KioErrorCode:
            ours = ErrorCode[theirs.name.upper()]
            self.assertEqual((ours, ours.isRetriable), (theirs.value, theirs.retriable), theirs)

    def test_messages(self) -> None:
        """Every error but NONE has a text."""
        self.assertEqual([code for code in ErrorCode if not code.message], [ErrorCode.NONE])
