"""
A store on disk, in RocksDB, which needs the extra C{tasks}. A module of its own, since jobs choose
between it and L{pylogbroker.tasks.state.memoryengine}.

What must be true:

  - Entries and mark are one batch of the write-ahead log. After a kill the store holds the batches
  up to some one, and its mark. Nothing is synced to the disk for each batch: after a power cut
  there may be fewer batches, still with the mark of the last one, and the changelog has the rest.
  - A damaged store is not used, since it can be built again: it begins empty, and the caller is
  told why. What passes (a lock, a full disk, too many open files) is no damage.
  - RocksDB finds damaged blocks by their checksums, but not that the end of its MANIFEST is
  missing, with all tables that it names. So each batch carries its number. Batches are grouped
  into I{generations}, smaller than a memtable. A key for each generation holds the number of its
  last batch, and that of the one before its first. If a memtable is lost, and later batches are
  not, a generation is missing, or the numbers leave a gap. A store keeps the last
  L{GENERATION_COUNT}.

Keys: C{00} the mark; C{01 key} an entry; C{02 number} a generation.

Rejected: a column family for the mark, which would keep the write-ahead log until its own memtable
is full; and RocksDB's own iterator over items, which ends at a damaged block as if it were the end.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any
from weakref import WeakSet

from pylogbroker.errors import ConfigurationError, DirectoryLockedError, StorageError
from pylogbroker.storage.files import storageError
from pylogbroker.tasks.state.engines import ChangelogMark

BLOCK_CACHE_SIZE = 8 << 20
"""Bytes of blocks, indexes and filters in memory, for each store."""

WRITE_BUFFER_SIZE = 4 << 20
"""Bytes of a memtable."""

WRITE_BUFFER_COUNT = 2
"""One that is written, and one that is being flushed; a third one waits for it."""

OPEN_FILE_COUNT_MAX = 64
"""Tables that a store keeps open."""

METADATA_BLOCK_SIZE = 4 << 10
"""Bytes of a part of an index or a filter."""

GENERATION_COUNT = 64
"""More than all memtables have that are not flushed yet."""

DAMAGED = "damaged"
"""The file in a store's folder that says why the store must not be used."""

_MARK = b"\0"
_ENTRIES, _ENTRIES_END = b"\1", b"\2"
_GENERATIONS, _GENERATIONS_END = b"\2", b"\3"

_VERSION = 0
_MARK_STRUCT = struct.Struct(">B16sqQQ")  # version, topic id, offset, generation, batch
_GENERATION_STRUCT = struct.Struct(">QQ")  # the batch before its first, its last batch
_NUMBER = struct.Struct(">Q")

_ENTRY_OVERHEAD_SIZE = 100  # of an entry in a memtable, at most
_GENERATIONS_IN_MEMTABLE = 4
_LOG_SIZE_MAX = 1 << 20
_MANIFEST_SIZE_MAX = 4 << 20
_PASSING = (
    "/LOCK: ",
    *(
        os.strerror(number)
        for number in (
            errno.EACCES, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC,
            errno.EPERM, errno.EROFS,
        )
    ),
)  # fmt: skip


class _DamageError(Exception):
    """The files can be read, but their contents do not fit together."""


class RocksDbEngine:
    """
    An L{IStoreEngine<pylogbroker.tasks.state.engines.IStoreEngine>} over a folder.

    Memory: at most a block cache and two memtables, 16 MiB by default, for each store.
    """

    def __init__(
        self,
        directory: str,
        onDamaged: Callable[[str], object],
        *,
        blockCacheSize: int = BLOCK_CACHE_SIZE,
        writeBufferSize: int = WRITE_BUFFER_SIZE,
    ) -> None:
        """
        Open a store, or create it.

        @param directory: of this store alone. All that is in it is removed if it is damaged.
        @param onDamaged: is told the reason when the store begins empty because it was damaged.
        @param blockCacheSize: bytes.
        @param writeBufferSize: bytes of a memtable.
        @raise ConfigurationError: RocksDB is not installed.
        @raise DirectoryLockedError: another engine has the store, in this process or another.
        @raise StorageError: the store cannot be opened or created, for another reason than damage.
        """
        try:
            import rocksdict
        except ImportError as error:
            raise ConfigurationError(
                "stores on disk need RocksDB: pip install 'pylogbroker[tasks]', or choose stores in"
                f" memory ({error})"
            ) from error
        self._rocksdict: Any = rocksdict
        self._directory = directory
        self._blockCacheSize = blockCacheSize
        self._writeBufferSize = writeBufferSize
        self._db: Any = None
        self._ranges: WeakSet[Generator[tuple[bytes, bytes], None, None]] = WeakSet()
        reason = self._damageBefore()
        if reason is None:
            try:
                self._open()
                return
            except _DamageError as error:
                reason = str(error)
        self._remove()
        try:
            self._open()
        except _DamageError as error:
            raise StorageError(directory, "open", str(error)) from error
        onDamaged(reason)

    # -- opening

    def _damageBefore(self) -> str | None:
        try:
            with open(os.path.join(self._directory, DAMAGED), encoding="utf-8") as file:
                return file.read() or DAMAGED
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storageError(self._directory, "open", error) from error

    def _open(self) -> None:
        """
        @raise _DamageError: the store is closed, and unusable.
        """
        self.mark: ChangelogMark | None = None
        self._generation = 0
        self._generationSize = 0  # 0: the next batch begins one, as after opening
        self._batch = self._batchBefore = 0
        try:
            os.makedirs(self._directory, exist_ok=True)
            hadTables = any(name.endswith(".sst") for name in os.listdir(self._directory))
        except OSError as error:
            raise storageError(self._directory, "open", error) from error
        try:
            self._db = self._rocksdict.Rdict(self._directory, self._options())
            self._load(hadTables)
        except Exception as error:
            self._closeQuietly()
            if not isinstance(error, _DamageError) and _isPassing(error):
                raise self._error("open", error) from error
            raise _DamageError(_reason(error)) from error

    def _options(self) -> Any:
        rocksdict = self._rocksdict
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(rocksdict.Cache(self._blockCacheSize))
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_bloom_filter(10, False)
        # The filter of a table of millions of keys has megabytes: in one piece it would not stay in
        # the cache, and each get would read it anew.
        blocks.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        blocks.set_partition_filters(True)
        blocks.set_metadata_block_size(METADATA_BLOCK_SIZE)
        blocks.set_pin_top_level_index_and_filter(True)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_write_buffer_size(self._writeBufferSize)
        options.set_max_write_buffer_number(WRITE_BUFFER_COUNT)
        options.set_max_open_files(OPEN_FILE_COUNT_MAX)
        options.set_max_manifest_file_size(_MANIFEST_SIZE_MAX)
        options.set_max_log_file_size(_LOG_SIZE_MAX)
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
        return options

    def _load(self, hadTables: bool) -> None:
        value = self._db.get(_MARK)
        if value is None:
            if hadTables or next(self._iterate(_MARK, _GENERATIONS_END), None) is not None:
                raise _DamageError("its tables have no mark")
            return
        if len(value) != _MARK_STRUCT.size or value[0] != _VERSION:
            raise _DamageError(f"its mark is of an unknown version, or wrong: {value.hex()}")
        _version, topicId, offset, self._generation, self._batch = _MARK_STRUCT.unpack(value)
        self._checkGenerations()
        self.mark = ChangelogMark(topicId, offset)

    def _checkGenerations(self) -> None:
        expected = max(self._generation - GENERATION_COUNT, 0)
        last = None
        for key, value in self._iterate(_GENERATIONS, _GENERATIONS_END):
            expected += 1
            before, batch = _GENERATION_STRUCT.unpack(value)
            if _NUMBER.unpack(key) != (expected,) or (last is not None and before != last):
                raise _DamageError(f"writes before batch {batch} are missing")
            last = batch
        if last != self._batch or expected != self._generation:
            raise _DamageError(f"writes before batch {self._batch} are missing")

    # -- entries

    def get(self, key: bytes) -> bytes | None:
        """See the interface."""
        database = self._opened("read")
        try:
            found: bytes | None = database.get(_ENTRIES + key)
        except Exception as error:
            raise self._failed("read", error) from error
        return found

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See the interface; an iteration that is not over keeps files that are obsolete."""
        self._opened("read")
        last = _ENTRIES_END if end is None else _ENTRIES + end
        return self._iterate(_ENTRIES + (start or b""), last)

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], mark: ChangelogMark) -> None:
        """See the interface."""
        database = self._opened("write")
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, value in entries:
            if value is None:
                batch.delete(_ENTRIES + key)
            else:
                batch.put(_ENTRIES + key, value)
        number = self._batch + 1
        generation, before, size = self._generation, self._batchBefore, self._generationSize
        if not 0 < size < self._writeBufferSize // _GENERATIONS_IN_MEMTABLE:
            generation, before, size = generation + 1, self._batch, 0
            if generation > GENERATION_COUNT:
                batch.delete(_GENERATIONS + _NUMBER.pack(generation - GENERATION_COUNT))
        batch.put(_GENERATIONS + _NUMBER.pack(generation), _GENERATION_STRUCT.pack(before, number))
        batch.put(_MARK, _MARK_STRUCT.pack(_VERSION, *mark, generation, number))
        size += batch.size_in_bytes() + batch.len() * _ENTRY_OVERHEAD_SIZE
        try:
            database.write(batch)
        except Exception as error:
            raise self._failed("write", error) from error
        self.mark = mark
        self._batch, self._batchBefore = number, before
        self._generation, self._generationSize = generation, size

    @property
    def size(self) -> int:
        """Bytes of the tables, and of the memtables that are not in them yet."""
        database = self._opened("read")
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(database.property_int_value(name) or 0 for name in names)

    def clear(self) -> None:
        """See the interface."""
        self._opened("clear")
        self._closeQuietly()
        self._remove()
        try:
            self._open()
        except _DamageError as error:
            raise StorageError(self._directory, "clear", str(error)) from error

    def close(self) -> None:
        """
        See the interface. If RocksDB closes with an error, the store is damaged: that is told when
        it is opened again.
        """
        error = self._closeQuietly()
        if error is not None:
            self._failed("close", error)

    def _iterate(self, start: bytes, end: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """The snapshot is taken now; keys come without their first byte."""
        options = self._rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        found = self._db.iter(options)
        found.seek(start)
        entries = self._entriesOf(found, options)
        self._ranges.add(entries)
        return entries

    def _entriesOf(self, found: Any, _options: Any) -> Generator[tuple[bytes, bytes], None, None]:
        """
        @param _options: hold the upper bound, which the iterator only points to.
        """
        try:
            while found.valid():
                yield found.key()[1:], found.value()
                found.next()
            found.status()
        except Exception as error:
            raise self._failed("read", error) from error
        finally:
            del found  # it keeps the lock, and the traceback of an error keeps what is in here

    def _opened(self, action: str) -> Any:
        if self._db is None:
            raise StorageError(self._directory, action, "the store was closed")
        return self._db

    def _closeQuietly(self) -> Exception | None:
        for each in list(self._ranges):
            each.close()  # or it would keep the lock
        database, self._db = self._db, None
        try:
            if database is not None:
                database.close()
        except Exception as error:
            return error
        finally:
            del database  # after an error it is closed by this, not by the call
        return None

    def _remove(self) -> None:
        try:
            self._rocksdict.Rdict.destroy(self._directory, self._options())  # takes the lock
        except Exception as error:
            if _isPassing(error):
                raise self._error("remove", error) from error
        try:
            shutil.rmtree(self._directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storageError(self._directory, "remove", error) from error

    def _failed(self, action: str, error: Exception) -> StorageError:
        """The error to raise. What does not pass is damage, at the next opening."""
        if not _isPassing(error):
            try:
                with open(os.path.join(self._directory, DAMAGED), "w", encoding="utf-8") as file:
                    file.write(_reason(error))
            except OSError:
                pass  # the folder is gone, or the disk; then the next opening finds that
        return self._error(action, error)

    def _error(self, action: str, error: Exception) -> StorageError:
        kind = DirectoryLockedError if "/LOCK: " in str(error) else StorageError
        return kind(self._directory, action, _reason(error))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _isPassing(error: Exception) -> bool:
    return any(each in str(error) for each in _PASSING)
