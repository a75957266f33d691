/*
 * The hot loops of pylogbroker in C: the optional module pylogbroker._speedups, which
 * pylogbroker/speedups.py chooses at import.
 *
 * What must be true:
 *
 *   - A function accepts only what its twin in Python accepts, and gives the same result. Where a
 *     loop meets anything unusual (a fault, a number of more than 64 bits), it stops and says how
 *     far it came; the twin goes on from there, and raises the error. So no text of an error stands
 *     here, and both raise the same ones.
 *   - A length is compared with the bytes that are there before anything is read or allocated.
 *   - Nothing is kept between calls but the tables of the checksums, which never change.
 *   - Bytes that are read belong to immutable objects (bytes), or to a buffer that is held.
 *   - No recursion, and the interpreter lock is not released.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_FOLDING 1
#include <immintrin.h>
#else
#define HAS_FOLDING 0
#endif

typedef unsigned char byte;

/* -- numbers in bytes ------------------------------------------------------------------------- */

static inline uint32_t
readBig32(const byte *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline void
writeBig32(byte *at, uint32_t number)
{
    at[0] = (byte)(number >> 24);
    at[1] = (byte)(number >> 16);
    at[2] = (byte)(number >> 8);
    at[3] = (byte)number;
}

static inline uint32_t
readLittle32(const byte *at)
{
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

/* -- checksums -------------------------------------------------------------------------------- */

#define FOLDED_SIZE_MIN 64

/*
 * A CRC of 32 bits with reflected input and output. `tables` take eight bytes at a time. The powers
 * of x, modulo the polynomial, fold 64 or 16 bytes onto the following ones by carry-less products.
 */
typedef struct {
    uint32_t tables[8][256];
    uint64_t by64[2];
    uint64_t by16[2];
} Checksum;

static Checksum ieee;       /* CRC-32 of the 2011 format */
static Checksum castagnoli; /* CRC-32C of record batches */
static int canFold = 0;

/* x^exponent modulo the polynomial, reflected, and shifted as carry-less products need it. */
static uint64_t
powerOfX(uint32_t polynomial, int exponent)
{
    uint32_t power = 0x80000000u;
    while (exponent-- > 0) {
        power = power & 1 ? power >> 1 ^ polynomial : power >> 1;
    }
    return (uint64_t)power << 1;
}

static void
prepareChecksum(Checksum *checksum, uint32_t polynomial)
{
    for (uint32_t number = 0; number < 256; number++) {
        uint32_t found = number;
        for (int bit = 0; bit < 8; bit++) {
            found = found & 1 ? found >> 1 ^ polynomial : found >> 1;
        }
        checksum->tables[0][number] = found;
    }
    for (int table = 1; table < 8; table++) {
        for (int number = 0; number < 256; number++) {
            uint32_t before = checksum->tables[table - 1][number];
            checksum->tables[table][number] = before >> 8 ^ checksum->tables[0][before & 255];
        }
    }
    checksum->by64[0] = powerOfX(polynomial, 512 + 32);
    checksum->by64[1] = powerOfX(polynomial, 512 - 32);
    checksum->by16[0] = powerOfX(polynomial, 128 + 32);
    checksum->by16[1] = powerOfX(polynomial, 128 - 32);
}

static uint32_t
tableChecksum(const Checksum *checksum, uint32_t state, const byte *at, size_t size)
{
    const uint32_t(*tables)[256] = checksum->tables;
    while (size >= 8) {
        uint32_t low = state ^ readLittle32(at), high = readLittle32(at + 4);
        state = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255]
                ^ tables[4][low >> 24] ^ tables[3][high & 255] ^ tables[2][high >> 8 & 255]
                ^ tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
        at += 8;
        size -= 8;
    }
    while (size--) {
        state = state >> 8 ^ tables[0][(state ^ *at++) & 255];
    }
    return state;
}

#if HAS_FOLDING
__attribute__((target("pclmul,sse2"))) static inline __m128i
fold(__m128i folded, __m128i powers, const byte *onto)
{
    __m128i low = _mm_clmulepi64_si128(folded, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(folded, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const __m128i *)onto));
}

/* As tableChecksum, for 64 bytes and more. */
__attribute__((target("pclmul,sse2"))) static uint32_t
foldedChecksum(const Checksum *checksum, uint32_t state, const byte *at, size_t size)
{
    __m128i powers = _mm_loadu_si128((const __m128i *)checksum->by64);
    __m128i lane0 = _mm_loadu_si128((const __m128i *)at);
    __m128i lane1 = _mm_loadu_si128((const __m128i *)(at + 16));
    __m128i lane2 = _mm_loadu_si128((const __m128i *)(at + 32));
    __m128i lane3 = _mm_loadu_si128((const __m128i *)(at + 48));
    byte rest[16];
    lane0 = _mm_xor_si128(lane0, _mm_cvtsi32_si128((int)state));
    at += 64;
    size -= 64;
    while (size >= 64) {
        lane0 = fold(lane0, powers, at);
        lane1 = fold(lane1, powers, at + 16);
        lane2 = fold(lane2, powers, at + 32);
        lane3 = fold(lane3, powers, at + 48);
        at += 64;
        size -= 64;
    }
    powers = _mm_loadu_si128((const __m128i *)checksum->by16);
    _mm_storeu_si128((__m128i *)rest, lane1);
    lane0 = fold(lane0, powers, rest);
    _mm_storeu_si128((__m128i *)rest, lane2);
    lane0 = fold(lane0, powers, rest);
    _mm_storeu_si128((__m128i *)rest, lane3);
    lane0 = fold(lane0, powers, rest);
    while (size >= 16) {
        lane0 = fold(lane0, powers, at);
        at += 16;
        size -= 16;
    }
    _mm_storeu_si128((__m128i *)rest, lane0);
    return tableChecksum(checksum, tableChecksum(checksum, 0, rest, 16), at, size);
}
#endif

/* The checksum of bytes behind others, whose checksum is `before` (0: there are none). */
static uint32_t
checksumOf(const Checksum *checksum, const byte *at, size_t size, uint32_t before)
{
#if HAS_FOLDING
    if (canFold && size >= FOLDED_SIZE_MIN) {
        return ~foldedChecksum(checksum, ~before, at, size);
    }
#endif
    return ~tableChecksum(checksum, ~before, at, size);
}

static PyObject *
checksumCall(const Checksum *checksum, PyObject *const *given, Py_ssize_t count)
{
    Py_buffer data;
    unsigned long before = 0;
    uint32_t found;
    if (count < 1 || count > 2) {
        PyErr_SetString(PyExc_TypeError, "one or two arguments are needed: data, and a checksum");
        return NULL;
    }
    if (count == 2) {
        before = PyLong_AsUnsignedLongMask(given[1]);
        if (before == (unsigned long)-1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (PyObject_GetBuffer(given[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    found = checksumOf(checksum, data.buf, (size_t)data.len, (uint32_t)before);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(found);
}

static PyObject *
crc32(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    return checksumCall(&ieee, given, count);
}

static PyObject *
crc32c(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    return checksumCall(&castagnoli, given, count);
}

/* -- partitions ------------------------------------------------------------------------------- */

static uint32_t
murmur2Of(const byte *at, size_t size)
{
    const uint32_t factor = 0x5bd1e995u;
    uint32_t number = 0x9747b28cu ^ (uint32_t)size;
    for (; size >= 4; at += 4, size -= 4) {
        uint32_t word = readLittle32(at) * factor;
        word ^= word >> 24;
        number = number * factor ^ word * factor;
    }
    if (size) {
        uint32_t word = 0;
        while (size--) {
            word = word << 8 | at[size];
        }
        number = (number ^ word) * factor;
    }
    number ^= number >> 13;
    number *= factor;
    return number ^ number >> 15;
}

static PyObject *
murmur2(PyObject *Py_UNUSED(module), PyObject *key)
{
    Py_buffer data;
    uint32_t found;
    if (PyObject_GetBuffer(key, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    found = murmur2Of(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(found);
}

/* -- varints ---------------------------------------------------------------------------------- */

#define VARINT_SIZE_MAX 10

static inline uint64_t
zigzag(int64_t number)
{
    return (uint64_t)number << 1 ^ (uint64_t)(number >> 63);
}

static inline int64_t
unzigzag(uint64_t number)
{
    return (int64_t)(number >> 1 ^ (0 - (number & 1)));
}

static inline size_t
varintSize(uint64_t number)
{
    size_t size = 1;
    while (number > 127) {
        number >>= 7;
        size++;
    }
    return size;
}

static inline byte *
writeVarint(byte *at, uint64_t number)
{
    while (number > 127) {
        *at++ = (byte)(number | 128);
        number >>= 7;
    }
    *at++ = (byte)number;
    return at;
}

/* A window on bytes that moves forward. */
typedef struct {
    const byte *at;
    const byte *end;
} Window;

/* Whether there was a whole number of at most 64 bits. */
static inline int
readVarint(Window *window, uint64_t *number)
{
    const byte *at = window->at;
    uint64_t found = 0;
    if (at < window->end && *at < 128) {
        *number = *at;
        window->at = at + 1;
        return 1;
    }
    for (int place = 0; place < VARINT_SIZE_MAX && at < window->end; place++) {
        byte next = *at++;
        if (place == VARINT_SIZE_MAX - 1 && next > 1) {
            return 0;
        }
        found |= (uint64_t)(next & 127) << 7 * place;
        if (next < 128) {
            *number = found;
            window->at = at;
            return 1;
        }
    }
    return 0;
}

/*
 * The bytes of a field behind their size. `found` is NULL for none: the size is negative, whatever
 * it is. Whether the field was whole.
 */
static inline int
readSized(Window *window, const byte **found, size_t *size)
{
    uint64_t number;
    if (!readVarint(window, &number)) {
        return 0;
    }
    if (number & 1) {
        *found = NULL;
        *size = 0;
        return 1;
    }
    number >>= 1;
    if (number > (uint64_t)(window->end - window->at)) {
        return 0;
    }
    *found = window->at;
    *size = (size_t)number;
    window->at += number;
    return 1;
}

/* -- one record ------------------------------------------------------------------------------- */

typedef struct {
    int64_t deltaMs;
    int64_t offsetDelta;
    const byte *key;
    size_t keySize;
    const byte *value;
    size_t valueSize;
    uint64_t headerCount;
    Window headers; /* from the first header to the end of the body */
} RecordFields;

/* Go past the headers; whether each was whole, and had a name. */
static int
skipHeaders(Window *window, uint64_t count)
{
    const byte *found;
    size_t size;
    while (count--) {
        if (!readSized(window, &found, &size) || found == NULL
            || !readSized(window, &found, &size)) {
            return 0;
        }
    }
    return 1;
}

/* Read a record, and go past it. Whether it was whole, and ended where its size says. */
static inline int
readRecord(Window *window, RecordFields *record)
{
    uint64_t number;
    const byte *behind;
    if (!readVarint(window, &number) || number & 1
        || number >> 1 > (uint64_t)(window->end - window->at)) {
        return 0;
    }
    behind = window->at + (number >> 1);
    if (window->at == window->end) {
        return 0;
    }
    window->at++; /* attributes, which are not used */
    if (!readVarint(window, &number)) {
        return 0;
    }
    record->deltaMs = unzigzag(number);
    if (!readVarint(window, &number)) {
        return 0;
    }
    record->offsetDelta = unzigzag(number);
    if (!readSized(window, &record->key, &record->keySize)
        || !readSized(window, &record->value, &record->valueSize)
        || !readVarint(window, &number)) {
        return 0;
    }
    record->headerCount = number >> 1;
    record->headers = *window;
    if (number) {
        if (number & 1 || number >> 1 > (uint64_t)(window->end - window->at)
            || !skipHeaders(window, number >> 1)) {
            return 0;
        }
    }
    return window->at == behind;
}

/* -- decoding records ------------------------------------------------------------------------- */

static PyObject *emptyTuple;

static inline PyObject *
bytesOrNone(const byte *at, size_t size)
{
    if (at == NULL) {
        return Py_NewRef(Py_None);
    }
    return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)size);
}

/* A tuple of pairs. What it holds has no references: the garbage collector need not know it. */
static PyObject *
makeHeaders(Window window, uint64_t count)
{
    const byte *at = NULL;
    size_t size = 0;
    PyObject *headers;
    if (!count) {
        return Py_NewRef(emptyTuple);
    }
    headers = PyTuple_New((Py_ssize_t)count);
    if (headers == NULL) {
        return NULL;
    }
    for (Py_ssize_t index = 0; index < (Py_ssize_t)count; index++) {
        PyObject *pair = PyTuple_New(2), *part;
        if (pair == NULL) {
            Py_DECREF(headers);
            return NULL;
        }
        PyTuple_SET_ITEM(headers, index, pair);
        /* readRecord has been here: both fields are whole. */
        if (!readSized(&window, &at, &size)) {
            at = NULL;
        }
        part = PyUnicode_DecodeUTF8((const char *)at, (Py_ssize_t)size, "replace");
        if (part == NULL) {
            Py_DECREF(headers);
            return NULL;
        }
        PyTuple_SET_ITEM(pair, 0, part);
        if (!readSized(&window, &at, &size)) {
            at = NULL;
        }
        part = bytesOrNone(at, size);
        if (part == NULL) {
            Py_DECREF(headers);
            return NULL;
        }
        PyTuple_SET_ITEM(pair, 1, part);
        PyObject_GC_UnTrack(pair);
    }
    PyObject_GC_UnTrack(headers);
    return headers;
}

static int
holdsNoReferences(PyObject *tuple)
{
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(tuple); index++) {
        if (PyObject_IS_GC(PyTuple_GET_ITEM(tuple, index))) {
            return 0;
        }
    }
    return 1;
}

typedef struct {
    PyTypeObject *cls;
    PyObject *before;
    PyObject *behind;
    PyObject *appendMs;
    int64_t baseOffset;
    int64_t baseMs;
    int isTracked;
} RowMaker;

/* An instance of the class: what stands before, the five fields of a record, what stands behind. */
static PyObject *
makeRow(const RowMaker *maker, const RecordFields *record, int64_t offset, int64_t timestampMs)
{
    Py_ssize_t beforeCount = PyTuple_GET_SIZE(maker->before);
    Py_ssize_t behindCount = PyTuple_GET_SIZE(maker->behind);
    PyObject *row = maker->cls->tp_alloc(maker->cls, beforeCount + 5 + behindCount);
    PyObject **items, *made[5];
    if (row == NULL) {
        return NULL;
    }
    items = ((PyTupleObject *)row)->ob_item;
    for (Py_ssize_t index = 0; index < beforeCount; index++) {
        *items++ = Py_NewRef(PyTuple_GET_ITEM(maker->before, index));
    }
    made[0] = PyLong_FromLongLong(offset);
    made[1] = maker->appendMs == Py_None ? PyLong_FromLongLong(timestampMs)
                                         : Py_NewRef(maker->appendMs);
    made[2] = bytesOrNone(record->key, record->keySize);
    made[3] = bytesOrNone(record->value, record->valueSize);
    made[4] = makeHeaders(record->headers, record->headerCount);
    for (int index = 0; index < 5; index++) {
        *items++ = made[index];
    }
    for (Py_ssize_t index = 0; index < behindCount; index++) {
        *items++ = Py_NewRef(PyTuple_GET_ITEM(maker->behind, index));
    }
    if (!(made[0] && made[1] && made[2] && made[3] && made[4])) {
        Py_DECREF(row); /* a tuple may have empty places when it goes */
        return NULL;
    }
    if (!maker->isTracked) {
        PyObject_GC_UnTrack(row);
    }
    return row;
}

static int
isPlainTupleClass(PyObject *cls)
{
    return PyType_Check(cls) && PyType_IsSubtype((PyTypeObject *)cls, &PyTuple_Type)
           && ((PyTypeObject *)cls)->tp_basicsize == PyTuple_Type.tp_basicsize
           && ((PyTypeObject *)cls)->tp_itemsize == PyTuple_Type.tp_itemsize
           && ((PyTypeObject *)cls)->tp_dictoffset == 0;
}

/*
 * decodeRecords(cls, before, behind, body, at, count, baseOffset, baseMs, appendMs, start)
 *
 * Rows of at most `count` records from byte `at` on, without those of offsets below `start`.
 * Returns (rows, the byte behind them, the number of records that were read): fewer than `count`
 * where the next one is unusual.
 */
static PyObject *
decodeRecords(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *cls, *body, *rows;
    RowMaker maker;
    Py_ssize_t position, count, done = 0;
    long long baseOffset, baseMs, start;
    const byte *begin;
    Window window;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!nnLLOL", &cls, &PyTuple_Type, &maker.before,
                          &PyTuple_Type, &maker.behind, &PyBytes_Type, &body, &position, &count,
                          &baseOffset, &baseMs, &maker.appendMs, &start)) {
        return NULL;
    }
    if (!isPlainTupleClass(cls)) {
        PyErr_SetString(PyExc_TypeError, "the class of the rows is no plain tuple");
        return NULL;
    }
    if (position < 0 || position > PyBytes_GET_SIZE(body)) {
        PyErr_SetString(PyExc_ValueError, "the position is not in the body");
        return NULL;
    }
    maker.cls = (PyTypeObject *)cls;
    maker.baseOffset = baseOffset;
    maker.baseMs = baseMs;
    maker.isTracked = !holdsNoReferences(maker.before) || !holdsNoReferences(maker.behind);
    begin = (const byte *)PyBytes_AS_STRING(body);
    window.at = begin + position;
    window.end = begin + PyBytes_GET_SIZE(body);
    rows = PyList_New(0);
    if (rows == NULL) {
        return NULL;
    }
    for (; done < count; done++) {
        Window ahead = window;
        RecordFields record;
        int64_t offset, timestampMs;
        if (!readRecord(&ahead, &record)
            || __builtin_add_overflow(maker.baseOffset, record.offsetDelta, &offset)
            || __builtin_add_overflow(maker.baseMs, record.deltaMs, &timestampMs)) {
            break;
        }
        if (offset >= start) {
            PyObject *row = makeRow(&maker, &record, offset, timestampMs);
            if (row == NULL || PyList_Append(rows, row) < 0) {
                Py_XDECREF(row);
                Py_DECREF(rows);
                return NULL;
            }
            Py_DECREF(row);
        }
        window = ahead;
    }
    return Py_BuildValue("Nnn", rows, (Py_ssize_t)(window.at - begin), done);
}

/* A number of any size, brought into 64 bits; -1 with an error set: it is none. */
static int64_t
saturated(PyObject *number)
{
    int overflow;
    int64_t found = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow > 0 ? INT64_MAX : overflow < 0 ? INT64_MIN : found;
}

/* areOrdinary(body, recordCount, isKeyed, deltaMinMs, deltaMaxMs, deltaLargestMs=None) */
static PyObject *
areOrdinary(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *body, *least, *most, *wanted = Py_None;
    int isKeyed, overflow = 0;
    Py_ssize_t count;
    int64_t deltaMinMs, deltaMaxMs, largest = INT64_MIN;
    Window window;
    if (!PyArg_ParseTuple(arguments, "O!npO!O!|O", &PyBytes_Type, &body, &count, &isKeyed,
                          &PyLong_Type, &least, &PyLong_Type, &most, &wanted)) {
        return NULL;
    }
    deltaMinMs = saturated(least);
    deltaMaxMs = saturated(most);
    window.at = (const byte *)PyBytes_AS_STRING(body);
    window.end = window.at + PyBytes_GET_SIZE(body);
    for (Py_ssize_t index = 0; index < count; index++) {
        RecordFields record;
        if (!readRecord(&window, &record) || record.offsetDelta != index
            || record.deltaMs < deltaMinMs || record.deltaMs > deltaMaxMs
            || (isKeyed && record.key == NULL)) {
            Py_RETURN_FALSE;
        }
        if (record.deltaMs > largest) {
            largest = record.deltaMs;
        }
    }
    if (window.at != window.end) {
        Py_RETURN_FALSE;
    }
    if (wanted != Py_None) {
        int64_t number = PyLong_AsLongLongAndOverflow(wanted, &overflow);
        if (number == -1 && !overflow && PyErr_Occurred()) {
            return NULL;
        }
        if (overflow || count <= 0 || number != largest) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

/* -- encoding records ------------------------------------------------------------------------- */

#define BATCH_OVERHEAD 61
#define BUFFER_SIZE_MIN 1024

/* Bytes that grow. */
typedef struct {
    byte *data;
    size_t used;
    size_t capacity;
} Buffer;

/* Room for `more` bytes. Grows by half, so that the cost of a byte is bounded. */
static int
reserve(Buffer *buffer, size_t more)
{
    size_t wanted, capacity;
    byte *data;
    if (more <= buffer->capacity - buffer->used) {
        return 0;
    }
    wanted = buffer->used + more; /* both are sizes of objects that are there: no overflow */
    capacity = buffer->capacity + buffer->capacity / 2;
    if (capacity < BUFFER_SIZE_MIN) {
        capacity = BUFFER_SIZE_MIN;
    }
    if (capacity < wanted) {
        capacity = wanted;
    }
    data = PyMem_Realloc(buffer->data, capacity);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return 0;
}

typedef struct {
    PyObject_HEAD
    Buffer buffer;
    Py_ssize_t count;
    Py_ssize_t size;
    long long baseMs;
    long long maxTimestampMs;
} RecordEncoder;

static PyObject *
RecordEncoder_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    RecordEncoder *self = (RecordEncoder *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->size = BATCH_OVERHEAD;
        self->maxTimestampMs = -1;
    }
    return (PyObject *)self;
}

static void
RecordEncoder_dealloc(RecordEncoder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->buffer.data);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The bytes of a field; -1 with an error set: it is neither bytes nor None. */
static int
fieldOf(PyObject *object, const byte **at, size_t *size)
{
    if (object == Py_None) {
        *at = NULL;
        *size = 0;
        return 0;
    }
    if (!PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "keys and values are bytes or None, not %.200s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    *at = (const byte *)PyBytes_AS_STRING(object);
    *size = (size_t)PyBytes_GET_SIZE(object);
    return 0;
}

static inline size_t
sizedSize(const byte *at, size_t size)
{
    return at == NULL ? 1 : varintSize(zigzag((int64_t)size)) + size;
}

static inline byte *
writeSized(byte *target, const byte *at, size_t size)
{
    if (at == NULL) {
        *target++ = 1; /* the size -1 */
        return target;
    }
    target = writeVarint(target, zigzag((int64_t)size));
    memcpy(target, at, size);
    return target + size;
}

/* Names and values, one behind the other, which the list keeps alive. */
static PyObject *
flatHeaders(PyObject *headers)
{
    PyObject *each, *pair, *flat = PyList_New(0), *iterator = PyObject_GetIter(headers);
    if (flat == NULL || iterator == NULL) {
        goto failed;
    }
    while ((each = PyIter_Next(iterator)) != NULL) {
        pair = PySequence_Tuple(each);
        Py_DECREF(each);
        if (pair == NULL) {
            goto failed;
        }
        if (PyTuple_GET_SIZE(pair) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(pair, 0))) {
            Py_DECREF(pair);
            PyErr_SetString(PyExc_TypeError, "headers are pairs of text and bytes");
            goto failed;
        }
        if (PyList_Append(flat, PyTuple_GET_ITEM(pair, 0)) < 0
            || PyList_Append(flat, PyTuple_GET_ITEM(pair, 1)) < 0) {
            Py_DECREF(pair);
            goto failed;
        }
        Py_DECREF(pair);
    }
    if (PyErr_Occurred()) {
        goto failed;
    }
    Py_DECREF(iterator);
    return flat;
failed:
    Py_XDECREF(flat);
    Py_XDECREF(iterator);
    return NULL;
}

/* Name or value of a header. */
static int
headerField(PyObject *flat, Py_ssize_t index, const byte **at, size_t *size)
{
    PyObject *object = PyList_GET_ITEM(flat, index);
    Py_ssize_t found;
    if (index % 2) {
        return fieldOf(object, at, size);
    }
    *at = (const byte *)PyUnicode_AsUTF8AndSize(object, &found);
    *size = (size_t)found;
    return *at == NULL ? -1 : 0;
}

/* Append a record. */
static int
RecordEncoder_write(RecordEncoder *self, int64_t deltaMs, int64_t offsetDelta, PyObject *key,
                    PyObject *value, PyObject *headers)
{
    const byte *keyAt, *valueAt, *at;
    size_t keySize, valueSize, size, total;
    PyObject *flat = NULL;
    Py_ssize_t headerCount = 0;
    byte *target;
    if (fieldOf(key, &keyAt, &keySize) < 0 || fieldOf(value, &valueAt, &valueSize) < 0) {
        return -1;
    }
    total = 1 + varintSize(zigzag(deltaMs)) + varintSize(zigzag(offsetDelta))
            + sizedSize(keyAt, keySize) + sizedSize(valueAt, valueSize);
    if (headers != NULL && headers != emptyTuple) {
        flat = flatHeaders(headers);
        if (flat == NULL) {
            return -1;
        }
        headerCount = PyList_GET_SIZE(flat);
        for (Py_ssize_t index = 0; index < headerCount; index++) {
            if (headerField(flat, index, &at, &size) < 0) {
                goto failed;
            }
            total += sizedSize(at, size);
        }
    }
    total += varintSize(zigzag(headerCount / 2));
    if (reserve(&self->buffer, VARINT_SIZE_MAX + total) < 0) {
        goto failed;
    }
    target = writeVarint(self->buffer.data + self->buffer.used, zigzag((int64_t)total));
    *target++ = 0;
    target = writeVarint(target, zigzag(deltaMs));
    target = writeVarint(target, zigzag(offsetDelta));
    target = writeSized(target, keyAt, keySize);
    target = writeSized(target, valueAt, valueSize);
    target = writeVarint(target, zigzag(headerCount / 2));
    for (Py_ssize_t index = 0; index < headerCount; index++) {
        if (headerField(flat, index, &at, &size) < 0) {
            goto failed; /* nothing counts yet */
        }
        target = writeSized(target, at, size);
    }
    Py_XDECREF(flat);
    self->buffer.used = (size_t)(target - self->buffer.data);
    self->size = BATCH_OVERHEAD + (Py_ssize_t)self->buffer.used;
    self->count++;
    return 0;
failed:
    Py_XDECREF(flat);
    return -1;
}

/* Append a record with a timestamp; nothing counts if it fails. */
static int
RecordEncoder_append(RecordEncoder *self, PyObject *timestamp, PyObject *key, PyObject *value,
                     PyObject *headers)
{
    int64_t deltaMs = 0;
    long long timestampMs = PyLong_AsLongLong(timestamp);
    if (timestampMs == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (self->count && __builtin_sub_overflow(timestampMs, self->baseMs, &deltaMs)) {
        PyErr_SetString(PyExc_OverflowError, "timestamps too far from each other");
        return -1;
    }
    if (RecordEncoder_write(self, deltaMs, self->count, key, value, headers) < 0) {
        return -1;
    }
    if (self->count == 1) {
        self->baseMs = timestampMs;
    }
    if (timestampMs > self->maxTimestampMs) {
        self->maxTimestampMs = timestampMs;
    }
    return 0;
}

/* Append a record of the lists. The objects are held, since other code may run meanwhile. */
static int
RecordEncoder_appendAt(RecordEncoder *self, PyObject *const *lists, Py_ssize_t index)
{
    PyObject *key, *value, *timestamp, *headers = NULL;
    int isWritten;
    for (int each = 0; each < 3; each++) {
        if (index >= PyList_GET_SIZE(lists[each])) {
            PyErr_SetString(PyExc_ValueError, "timestamps, keys and values differ in number");
            return -1;
        }
    }
    timestamp = Py_NewRef(PyList_GET_ITEM(lists[0], index));
    key = Py_NewRef(PyList_GET_ITEM(lists[1], index));
    value = Py_NewRef(PyList_GET_ITEM(lists[2], index));
    if (PyDict_GET_SIZE(lists[3])) {
        PyObject *place = PyLong_FromSsize_t(index);
        if (place != NULL) {
            headers = Py_XNewRef(PyDict_GetItemWithError(lists[3], place));
            Py_DECREF(place);
        }
    }
    isWritten = PyErr_Occurred() ? -1 : RecordEncoder_append(self, timestamp, key, value, headers);
    Py_DECREF(timestamp);
    Py_DECREF(key);
    Py_DECREF(value);
    Py_XDECREF(headers);
    return isWritten;
}

static PyObject *
RecordEncoder_extend(RecordEncoder *self, PyObject *const *given, Py_ssize_t count)
{
    if (count != 4 || !PyList_Check(given[0]) || !PyList_Check(given[1]) || !PyList_Check(given[2])
        || !PyDict_Check(given[3])) {
        PyErr_SetString(PyExc_TypeError,
                        "lists of timestamps, keys and values, and a dict of headers are needed");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(given[0]); index++) {
        if (RecordEncoder_appendAt(self, given, index) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
RecordEncoder_take(RecordEncoder *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *body = PyBytes_FromStringAndSize((const char *)self->buffer.data, (Py_ssize_t)self->buffer.used);
    if (body != NULL) {
        PyMem_Free(self->buffer.data);
        self->buffer.data = NULL;
        self->buffer.used = self->buffer.capacity = 0;
    }
    return body;
}

static PyMethodDef RecordEncoder_methods[] = {
    {"extend", (PyCFunction)(void (*)(void))RecordEncoder_extend, METH_FASTCALL,
     PyDoc_STR("extend(timestamps, keys, values, headers)")},
    {"take", (PyCFunction)RecordEncoder_take, METH_NOARGS,
     PyDoc_STR("The bytes of the records, which are here no longer.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef RecordEncoder_members[] = {
    {"count", T_PYSSIZET, offsetof(RecordEncoder, count), READONLY, NULL},
    {"size", T_PYSSIZET, offsetof(RecordEncoder, size), READONLY, NULL},
    {"baseMs", T_LONGLONG, offsetof(RecordEncoder, baseMs), READONLY, NULL},
    {"maxTimestampMs", T_LONGLONG, offsetof(RecordEncoder, maxTimestampMs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot RecordEncoder_slots[] = {
    {Py_tp_new, RecordEncoder_new},
    {Py_tp_dealloc, RecordEncoder_dealloc},
    {Py_tp_methods, RecordEncoder_methods},
    {Py_tp_members, RecordEncoder_members},
    {Py_tp_doc, (void *)PyDoc_STR("Encodes records one behind the other, for one batch.")},
    {0, NULL},
};

static PyType_Spec RecordEncoder_spec = {
    .name = "pylogbroker._speedups.RecordEncoder",
    .basicsize = sizeof(RecordEncoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = RecordEncoder_slots,
};

/* -- records as Arrow's columns --------------------------------------------------------------- */

/* The buffers of the columns, in the order of pylogbroker.records.columns.RecordColumns. */
enum {
    OFFSETS,
    TIMESTAMPS,
    TIMESTAMP_TYPES,
    KEY_OFFSETS,
    KEYS,
    KEY_VALIDITY,
    VALUE_OFFSETS,
    VALUES,
    VALUE_VALIDITY,
    HEADER_OFFSETS,
    NAME_OFFSETS,
    NAMES,
    CONTENT_OFFSETS,
    CONTENTS,
    CONTENT_VALIDITY,
    COLUMN_COUNT
};

static const int edgeColumns[] = {KEY_OFFSETS, VALUE_OFFSETS, HEADER_OFFSETS, NAME_OFFSETS,
                                  CONTENT_OFFSETS};

#define NAME_GROWTH_MAX 3 /* a wrong byte becomes U+FFFD */

typedef struct {
    PyObject_HEAD
    Buffer columns[COLUMN_COUNT];
    Py_ssize_t count;
    Py_ssize_t headerCount;
    size_t absentKeyCount;
    size_t absentValueCount;
    size_t absentContentCount;
    int isBroken; /* a row was written in part */
} ColumnsEncoder;

static int
put(Buffer *buffer, const void *at, size_t size)
{
    if (reserve(buffer, size) < 0) {
        return -1;
    }
    if (size) {
        memcpy(buffer->data + buffer->used, at, size);
        buffer->used += size;
    }
    return 0;
}

/* A bit of a bitmap that has `count` bits. */
static int
putBit(Buffer *buffer, Py_ssize_t count, int isSet)
{
    byte none = 0;
    if (count % 8 == 0 && put(buffer, &none, 1) < 0) {
        return -1;
    }
    if (isSet) {
        buffer->data[buffer->used - 1] |= (byte)(1 << count % 8);
    }
    return 0;
}

/* A field, the edge behind it, and whether it is there. */
static int
putField(Buffer *edges, Buffer *data, Buffer *validity, Py_ssize_t count, size_t *absentCount,
         const byte *at, size_t size)
{
    int32_t edge;
    if (at == NULL) {
        *absentCount += 1;
    }
    if (put(data, at, size) < 0 || putBit(validity, count, at != NULL) < 0) {
        return -1;
    }
    edge = (int32_t)data->used; /* the caller has compared it with INT32_MAX */
    return put(edges, &edge, sizeof edge);
}

static int
ColumnsEncoder_begin(ColumnsEncoder *self)
{
    int32_t zero = 0;
    for (size_t index = 0; index < sizeof edgeColumns / sizeof *edgeColumns; index++) {
        if (put(&self->columns[edgeColumns[index]], &zero, sizeof zero) < 0) {
            return -1;
        }
    }
    return 0;
}

static void
ColumnsEncoder_clear(ColumnsEncoder *self)
{
    for (int index = 0; index < COLUMN_COUNT; index++) {
        PyMem_Free(self->columns[index].data);
        memset(&self->columns[index], 0, sizeof self->columns[index]);
    }
    self->count = self->headerCount = 0;
    self->absentKeyCount = self->absentValueCount = self->absentContentCount = 0;
}

static PyObject *
ColumnsEncoder_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    ColumnsEncoder *self = (ColumnsEncoder *)type->tp_alloc(type, 0);
    if (self != NULL && ColumnsEncoder_begin(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
ColumnsEncoder_dealloc(ColumnsEncoder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ColumnsEncoder_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static size_t
ColumnsEncoder_size(const ColumnsEncoder *self)
{
    return self->columns[KEYS].used + self->columns[VALUES].used + self->columns[NAMES].used
           + self->columns[CONTENTS].used;
}

/* A name as valid UTF-8, which Arrow's text must be. */
static int
ColumnsEncoder_putName(ColumnsEncoder *self, const byte *at, size_t size)
{
    Buffer *names = &self->columns[NAMES];
    size_t index = 0;
    int32_t edge;
    while (index < size && at[index] < 128) {
        index++;
    }
    if (index == size) {
        if (put(names, at, size) < 0) {
            return -1;
        }
    }
    else {
        const char *encoded = NULL;
        Py_ssize_t encodedSize;
        int isPut;
        PyObject *name = PyUnicode_DecodeUTF8((const char *)at, (Py_ssize_t)size, "replace");
        if (name == NULL) {
            return -1;
        }
        encoded = PyUnicode_AsUTF8AndSize(name, &encodedSize);
        isPut = encoded != NULL && put(names, encoded, (size_t)encodedSize) == 0;
        Py_DECREF(name);
        if (!isPut) {
            return -1;
        }
    }
    edge = (int32_t)names->used;
    return put(&self->columns[NAME_OFFSETS], &edge, sizeof edge);
}

/* Whether the fields of a record still fit below edges of 32 bits. */
static int
ColumnsEncoder_hasRoom(const ColumnsEncoder *self, const RecordFields *record, size_t headersSize)
{
    const size_t sizeMax = INT32_MAX;
    return record->keySize <= sizeMax - self->columns[KEYS].used
           && record->valueSize <= sizeMax - self->columns[VALUES].used
           && headersSize <= sizeMax / NAME_GROWTH_MAX
           && headersSize * NAME_GROWTH_MAX <= sizeMax - self->columns[NAMES].used
           && headersSize <= sizeMax - self->columns[CONTENTS].used
           && record->headerCount <= sizeMax - (size_t)self->headerCount;
}

static int
ColumnsEncoder_putRow(ColumnsEncoder *self, const RecordFields *record, int64_t offset,
                      int64_t timestampMs, int32_t timestampType)
{
    Buffer *columns = self->columns;
    Window window = record->headers;
    int32_t edge;
    if (put(&columns[OFFSETS], &offset, sizeof offset) < 0
        || put(&columns[TIMESTAMPS], &timestampMs, sizeof timestampMs) < 0
        || put(&columns[TIMESTAMP_TYPES], &timestampType, sizeof timestampType) < 0
        || putField(&columns[KEY_OFFSETS], &columns[KEYS], &columns[KEY_VALIDITY], self->count,
                    &self->absentKeyCount, record->key, record->keySize)
               < 0
        || putField(&columns[VALUE_OFFSETS], &columns[VALUES], &columns[VALUE_VALIDITY],
                    self->count, &self->absentValueCount, record->value, record->valueSize)
               < 0) {
        return -1;
    }
    for (uint64_t index = 0; index < record->headerCount; index++) {
        const byte *at = NULL;
        size_t size = 0;
        /* readRecord has been here: both fields are whole. */
        if (!readSized(&window, &at, &size) || ColumnsEncoder_putName(self, at, size) < 0
            || !readSized(&window, &at, &size)
            || putField(&columns[CONTENT_OFFSETS], &columns[CONTENTS],
                        &columns[CONTENT_VALIDITY], self->headerCount, &self->absentContentCount,
                        at, size)
                   < 0) {
            return -1;
        }
        self->headerCount++;
    }
    edge = (int32_t)self->headerCount;
    if (put(&columns[HEADER_OFFSETS], &edge, sizeof edge) < 0) {
        return -1;
    }
    self->count++;
    return 0;
}

/*
 * add(body, at, count, baseOffset, baseMs, appendMs, timestampType, start, end, rowCountMax,
 * sizeMax)
 *
 * Add the records of a batch from byte `at` on that have offsets from `start` to before `end`, up
 * to a number of rows or bytes. Returns (the byte behind them, the number of records that were
 * read, whether there is no room): fewer than `count` where there is no room, or the next one is
 * unusual.
 */
static PyObject *
ColumnsEncoder_add(ColumnsEncoder *self, PyObject *arguments)
{
    PyObject *body, *append;
    Py_ssize_t position, count, rowCountMax, sizeMax, done = 0;
    long long baseOffset, baseMs, start, end, appendMs = 0;
    int timestampType, isFull = 0;
    const byte *begin;
    Window window;
    if (!PyArg_ParseTuple(arguments, "O!nnLLOiLLnn", &PyBytes_Type, &body, &position, &count,
                          &baseOffset, &baseMs, &append, &timestampType, &start, &end,
                          &rowCountMax, &sizeMax)) {
        return NULL;
    }
    if (append != Py_None) {
        appendMs = PyLong_AsLongLong(append);
        if (appendMs == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (position < 0 || position > PyBytes_GET_SIZE(body) || sizeMax < 0 || self->isBroken) {
        PyErr_SetString(PyExc_ValueError, "the position is not in the body, or a size is negative,"
                                          " or adding failed before");
        return NULL;
    }
    begin = (const byte *)PyBytes_AS_STRING(body);
    window.at = begin + position;
    window.end = begin + PyBytes_GET_SIZE(body);
    while (done < count) {
        Window ahead = window;
        RecordFields record;
        int64_t offset, timestampMs;
        if (self->count > 0
            && (self->count >= rowCountMax || ColumnsEncoder_size(self) >= (size_t)sizeMax)) {
            isFull = 1;
            break;
        }
        if (!readRecord(&ahead, &record)
            || __builtin_add_overflow((int64_t)baseOffset, record.offsetDelta, &offset)
            || (__builtin_add_overflow((int64_t)baseMs, record.deltaMs, &timestampMs)
                && append == Py_None)) {
            break;
        }
        if (offset >= start && offset < end) {
            if (!ColumnsEncoder_hasRoom(self, &record, (size_t)(ahead.at - record.headers.at))) {
                isFull = self->count > 0;
                break;
            }
            if (append != Py_None) {
                timestampMs = appendMs;
            }
            if (ColumnsEncoder_putRow(self, &record, offset, timestampMs, timestampType) < 0) {
                self->isBroken = 1;
                if (!PyErr_Occurred()) {
                    PyErr_SetString(PyExc_SystemError, "a header was read in two ways");
                }
                return NULL;
            }
        }
        window = ahead;
        done++;
    }
    return Py_BuildValue("nnO", (Py_ssize_t)(window.at - begin), done,
                         isFull ? Py_True : Py_False);
}

static PyObject *
ColumnsEncoder_take(ColumnsEncoder *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *taken;
    if (self->isBroken) {
        PyErr_SetString(PyExc_ValueError, "adding failed before");
        return NULL;
    }
    taken = PyTuple_New(2 + COLUMN_COUNT);
    if (taken == NULL) {
        return NULL;
    }
    PyTuple_SET_ITEM(taken, 0, PyLong_FromSsize_t(self->count));
    PyTuple_SET_ITEM(taken, 1, PyLong_FromSsize_t(self->headerCount));
    for (int index = 0; index < COLUMN_COUNT; index++) {
        const Buffer *column = &self->columns[index];
        int isNeeded = index == KEY_VALIDITY       ? self->absentKeyCount > 0
                       : index == VALUE_VALIDITY   ? self->absentValueCount > 0
                       : index == CONTENT_VALIDITY ? self->absentContentCount > 0
                                                   : 1;
        PyTuple_SET_ITEM(taken, 2 + index,
                         isNeeded ? PyBytes_FromStringAndSize((const char *)column->data,
                                                              (Py_ssize_t)column->used)
                                  : Py_NewRef(Py_None));
    }
    for (int index = 0; index < 2 + COLUMN_COUNT; index++) {
        if (PyTuple_GET_ITEM(taken, index) == NULL) {
            Py_DECREF(taken);
            return NULL;
        }
    }
    ColumnsEncoder_clear(self);
    if (ColumnsEncoder_begin(self) < 0) {
        self->isBroken = 1;
        Py_DECREF(taken);
        return NULL;
    }
    return taken;
}

static PyMethodDef ColumnsEncoder_methods[] = {
    {"add", (PyCFunction)ColumnsEncoder_add, METH_VARARGS,
     PyDoc_STR("add(body, at, count, baseOffset, baseMs, appendMs, timestampType, start, end,"
               " rowCountMax, sizeMax): the byte behind the records, their number, and whether"
               " there is no room for the next one.")},
    {"take", (PyCFunction)ColumnsEncoder_take, METH_NOARGS,
     PyDoc_STR("The numbers of rows and headers, and the buffers, which begin anew.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef ColumnsEncoder_members[] = {
    {"count", T_PYSSIZET, offsetof(ColumnsEncoder, count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot ColumnsEncoder_slots[] = {
    {Py_tp_new, ColumnsEncoder_new},
    {Py_tp_dealloc, ColumnsEncoder_dealloc},
    {Py_tp_methods, ColumnsEncoder_methods},
    {Py_tp_members, ColumnsEncoder_members},
    {Py_tp_doc, (void *)PyDoc_STR("Decodes records into the buffers of Arrow's columns.")},
    {0, NULL},
};

static PyType_Spec ColumnsEncoder_spec = {
    .name = "pylogbroker._speedups.ColumnsEncoder",
    .basicsize = sizeof(ColumnsEncoder),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = ColumnsEncoder_slots,
};

/* -- message sets of 2011 --------------------------------------------------------------------- */

#define ENTRY_OVERHEAD 10 /* size field, magic 1, attributes, checksum */
#define ENTRY_HEADER 6    /* of those, what the size field counts */

/*
 * The size of a plain entry: magic 1, no attributes, whole, with its checksum. 0: there is none.
 */
static inline size_t
plainEntrySize(const byte *at, size_t left, size_t payloadSizeMax)
{
    size_t size;
    if (left < ENTRY_OVERHEAD || at[4] != 1 || at[5] != 0) {
        return 0;
    }
    size = readBig32(at);
    if (size < ENTRY_HEADER || size > INT32_MAX || size - ENTRY_HEADER > payloadSizeMax
        || size + 4 > left
        || checksumOf(&ieee, at + ENTRY_OVERHEAD, size - ENTRY_HEADER, 0) != readBig32(at + 6)) {
        return 0;
    }
    return size + 4;
}

/* validatePlain(sets, payloadSizeMax): sets that are plain from the first on, messages in them. */
static PyObject *
validatePlain(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t argumentCount)
{
    PyObject *sets;
    Py_ssize_t done = 0, count = 0, payloadSizeMax;
    if (argumentCount != 2) {
        PyErr_SetString(PyExc_TypeError, "sets and a size are needed");
        return NULL;
    }
    payloadSizeMax = PyLong_AsSsize_t(given[1]);
    if (payloadSizeMax < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "the size is negative");
        }
        return NULL;
    }
    sets = PySequence_Fast(given[0], "sets are a sequence");
    if (sets == NULL) {
        return NULL;
    }
    for (; done < PySequence_Fast_GET_SIZE(sets); done++) {
        Py_buffer data;
        size_t position = 0, size = 0;
        Py_ssize_t found = 0;
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(sets, done), &data, PyBUF_SIMPLE) < 0) {
            Py_DECREF(sets);
            return NULL;
        }
        do {
            size = plainEntrySize((const byte *)data.buf + position, (size_t)data.len - position,
                                  (size_t)payloadSizeMax);
            position += size;
            found++;
        } while (size && position < (size_t)data.len);
        PyBuffer_Release(&data);
        if (!size) {
            break;
        }
        count += found;
    }
    Py_DECREF(sets);
    return Py_BuildValue("nn", done, count);
}

/* encodePlainSet(payloads): the entries of a list of bytes; None: something is unusual. */
static PyObject *
encodePlainSet(PyObject *Py_UNUSED(module), PyObject *payloads)
{
    PyObject *set;
    byte *target;
    size_t total = 0;
    if (!PyList_CheckExact(payloads)) {
        PyErr_SetString(PyExc_TypeError, "payloads are a list");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(payloads); index++) {
        PyObject *payload = PyList_GET_ITEM(payloads, index);
        if (!PyBytes_CheckExact(payload)
            || PyBytes_GET_SIZE(payload) > INT32_MAX - ENTRY_HEADER
            || total > (size_t)PY_SSIZE_T_MAX / 2) {
            Py_RETURN_NONE;
        }
        total += ENTRY_OVERHEAD + (size_t)PyBytes_GET_SIZE(payload);
    }
    set = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (set == NULL) {
        return NULL;
    }
    target = (byte *)PyBytes_AS_STRING(set);
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(payloads); index++) {
        PyObject *payload = PyList_GET_ITEM(payloads, index);
        size_t size = (size_t)PyBytes_GET_SIZE(payload);
        const byte *at = (const byte *)PyBytes_AS_STRING(payload);
        writeBig32(target, (uint32_t)(size + ENTRY_HEADER));
        target[4] = 1;
        target[5] = 0;
        writeBig32(target + 6, checksumOf(&ieee, at, size, 0));
        memcpy(target + ENTRY_OVERHEAD, at, size);
        target += ENTRY_OVERHEAD + size;
    }
    return set;
}

/* Where plain entries are read: whole, from a position on. */
typedef struct {
    const byte *begin;
    size_t end;
    Py_ssize_t position;
    int64_t baseOffset;
} EntryReader;

static int
EntryReader_open(EntryReader *self, PyObject *data, Py_ssize_t position, long long baseOffset)
{
    self->begin = (const byte *)PyBytes_AS_STRING(data);
    self->end = (size_t)PyBytes_GET_SIZE(data);
    self->position = position;
    self->baseOffset = baseOffset;
    if (position < 0 || (size_t)position > self->end
        || baseOffset > INT64_MAX - (long long)self->end) {
        PyErr_SetString(PyExc_ValueError, "the position is not in the data");
        return -1;
    }
    return 0;
}

/* The size of the entry at the position; 0: none that is plain, whole and valid. */
static size_t
EntryReader_size(const EntryReader *self)
{
    return plainEntrySize(self->begin + self->position, self->end - (size_t)self->position,
                          INT32_MAX);
}

/* plainPairs(data, position, baseOffset, countMax): pairs, and the byte behind the last entry. */
static PyObject *
plainPairs(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *data, *pairs;
    Py_ssize_t position, countMax;
    long long baseOffset;
    EntryReader entries;
    if (!PyArg_ParseTuple(arguments, "O!nLn", &PyBytes_Type, &data, &position, &baseOffset,
                          &countMax)
        || EntryReader_open(&entries, data, position, baseOffset) < 0) {
        return NULL;
    }
    pairs = PyList_New(0);
    if (pairs == NULL) {
        return NULL;
    }
    for (; countMax > 0; countMax--) {
        const byte *at = entries.begin + entries.position;
        size_t size = EntryReader_size(&entries);
        PyObject *payload, *offset, *pair = NULL;
        int isAdded;
        if (!size) {
            break;
        }
        entries.position += (Py_ssize_t)size;
        payload = PyBytes_FromStringAndSize((const char *)at + ENTRY_OVERHEAD,
                                            (Py_ssize_t)size - ENTRY_OVERHEAD);
        offset = PyLong_FromLongLong(baseOffset + entries.position);
        if (payload != NULL && offset != NULL) {
            pair = PyTuple_Pack(2, payload, offset);
        }
        Py_XDECREF(payload);
        Py_XDECREF(offset);
        isAdded = pair != NULL && PyList_Append(pairs, pair) == 0;
        if (pair != NULL) {
            PyObject_GC_UnTrack(pair); /* it holds no references */
            Py_DECREF(pair);
        }
        if (!isAdded) {
            Py_DECREF(pairs);
            return NULL;
        }
    }
    return Py_BuildValue("Nn", pairs, entries.position);
}

/*
 * plainColumns(data, position, baseOffset): the edges of the payloads, four bytes each, the payloads
 * together, the offsets before, between and behind the entries, eight bytes each, and the byte
 * behind the last entry. Numbers are in the machine's byte order.
 */
static PyObject *
plainColumns(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *data, *edges, *values, *offsets;
    Py_ssize_t position;
    long long baseOffset;
    EntryReader entries;
    size_t count = 0, valueSize = 0;
    if (!PyArg_ParseTuple(arguments, "O!nL", &PyBytes_Type, &data, &position, &baseOffset)
        || EntryReader_open(&entries, data, position, baseOffset) < 0) {
        return NULL;
    }
    for (;;) {
        size_t size = EntryReader_size(&entries);
        if (!size || valueSize + (size - ENTRY_OVERHEAD) > INT32_MAX) {
            break;
        }
        entries.position += (Py_ssize_t)size;
        valueSize += size - ENTRY_OVERHEAD;
        count++;
    }
    edges = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((count + 1) * sizeof(int32_t)));
    values = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)valueSize);
    offsets = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((count + 1) * sizeof(int64_t)));
    if (edges == NULL || values == NULL || offsets == NULL) {
        Py_XDECREF(edges);
        Py_XDECREF(values);
        Py_XDECREF(offsets);
        return NULL;
    }
    else {
        byte *edge = (byte *)PyBytes_AS_STRING(edges), *value = (byte *)PyBytes_AS_STRING(values);
        byte *offset = (byte *)PyBytes_AS_STRING(offsets);
        int32_t reached = 0;
        int64_t reachedOffset = baseOffset + position;
        for (size_t index = 0;; index++) {
            const byte *at = entries.begin + position;
            int32_t size;
            memcpy(edge + index * sizeof(reached), &reached, sizeof(reached));
            memcpy(offset + index * sizeof(reachedOffset), &reachedOffset, sizeof(reachedOffset));
            if (index == count) {
                break;
            }
            size = (int32_t)readBig32(at) - ENTRY_HEADER;
            memcpy(value + reached, at + ENTRY_OVERHEAD, (size_t)size);
            reached += size;
            position += size + ENTRY_OVERHEAD;
            reachedOffset += size + ENTRY_OVERHEAD;
        }
    }
    return Py_BuildValue("NNNn", edges, values, offsets, entries.position);
}

/* -- frames of 2011 --------------------------------------------------------------------------- */

#define RUN_HEAD 8 /* frame size, request type, size of the topic */
#define RUN_TOPIC_SIZE_MAX 1024
#define KNOWN_RUN_COUNT 128

/* The type, topic and partition of requests seen before, and the list of their sets. */
typedef struct {
    const byte *key;
    size_t size;
    PyObject *sets; /* borrowed: the dictionary keeps it */
} KnownRun;

/*
 * takeRuns(buffer, position, sizeMax): a dictionary, and the byte behind the last request.
 *
 * Goes over whole and regular PRODUCE requests. For each request's type, topic and partition, as
 * bytes, the dictionary has the list of its sets. Requests for several partitions alternate, and
 * hashing each one's key would be a tenth of what they cost: keys are kept by their last byte.
 */
static PyObject *
takeRuns(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *buffer, *runs;
    Py_ssize_t position, sizeMax;
    const byte *begin;
    size_t end;
    KnownRun known[KNOWN_RUN_COUNT] = {{NULL, 0, NULL}};
    if (!PyArg_ParseTuple(arguments, "O!nn", &PyBytes_Type, &buffer, &position, &sizeMax)) {
        return NULL;
    }
    if (position < 0 || position > PyBytes_GET_SIZE(buffer)) {
        PyErr_SetString(PyExc_ValueError, "the position is not in the buffer");
        return NULL;
    }
    runs = PyDict_New();
    if (runs == NULL) {
        return NULL;
    }
    begin = (const byte *)PyBytes_AS_STRING(buffer);
    end = (size_t)PyBytes_GET_SIZE(buffer);
    for (;;) {
        const byte *at = begin + position;
        size_t left = end - (size_t)position, headSize, frameSize;
        uint32_t setSize;
        PyObject *set;
        KnownRun *run;
        int isAdded;
        if (left < RUN_HEAD) {
            break;
        }
        headSize = ((size_t)at[6] << 8 | at[7]) + 16;
        if (at[4] || at[5] || headSize > RUN_TOPIC_SIZE_MAX + 16 || headSize > left) {
            break;
        }
        frameSize = readBig32(at);
        setSize = readBig32(at + headSize - 4);
        if (frameSize > INT32_MAX || setSize > INT32_MAX || frameSize > (size_t)sizeMax
            || sizeMax < 0 || headSize + setSize != frameSize + 4 || frameSize + 4 > left) {
            break;
        }
        run = &known[at[headSize - 5] % KNOWN_RUN_COUNT]; /* the last byte of the partition */
        if (run->sets == NULL || run->size != headSize - 8
            || memcmp(run->key, at + 4, run->size) != 0) {
            PyObject *name, *sets;
            run->key = at + 4;
            run->size = headSize - 8;
            name = PyBytes_FromStringAndSize((const char *)run->key, (Py_ssize_t)run->size);
            if (name == NULL) {
                goto failed;
            }
            sets = PyDict_GetItemWithError(runs, name);
            if (sets == NULL) {
                PyObject *made = PyErr_Occurred() ? NULL : PyList_New(0);
                if (made == NULL || PyDict_SetItem(runs, name, made) < 0) {
                    Py_XDECREF(made);
                    Py_DECREF(name);
                    goto failed;
                }
                sets = made;
                Py_DECREF(made);
            }
            Py_DECREF(name);
            run->sets = sets;
        }
        set = PyBytes_FromStringAndSize((const char *)at + headSize, (Py_ssize_t)setSize);
        isAdded = set != NULL && PyList_Append(run->sets, set) == 0;
        Py_XDECREF(set);
        if (!isAdded) {
            goto failed;
        }
        position += (Py_ssize_t)frameSize + 4;
    }
    return Py_BuildValue("Nn", runs, position);
failed:
    Py_DECREF(runs);
    return NULL;
}

/* -- the module ------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL,
     PyDoc_STR("crc32(data, before=0): the checksum of the 2011 format.")},
    {"crc32c", (PyCFunction)(void (*)(void))crc32c, METH_FASTCALL,
     PyDoc_STR("crc32c(data, before=0): the checksum of record batches.")},
    {"murmur2", murmur2, METH_O, PyDoc_STR("murmur2(key): the hash of Java's client.")},
    {"decodeRecords", decodeRecords, METH_VARARGS,
     PyDoc_STR("decodeRecords(cls, before, behind, body, at, count, baseOffset, baseMs, appendMs,"
               " start): rows, the byte behind them, and the number of records that were read.")},
    {"areOrdinary", areOrdinary, METH_VARARGS,
     PyDoc_STR("areOrdinary(body, recordCount, isKeyed, deltaMinMs, deltaMaxMs,"
               " deltaLargestMs=None)")},
    {"validatePlain", (PyCFunction)(void (*)(void))validatePlain, METH_FASTCALL,
     PyDoc_STR("validatePlain(sets, payloadSizeMax): how many sets from the first on are plain and"
               " valid, and the messages in them.")},
    {"encodePlainSet", encodePlainSet, METH_O,
     PyDoc_STR("encodePlainSet(payloads): a message set; None: a payload is unusual.")},
    {"plainPairs", plainPairs, METH_VARARGS,
     PyDoc_STR("plainPairs(data, position, baseOffset, countMax): payloads with the offsets behind"
               " them, and the byte behind the last.")},
    {"plainColumns", plainColumns, METH_VARARGS,
     PyDoc_STR("plainColumns(data, position, baseOffset): the edges of the payloads, the payloads"
               " together, the offsets before, between and behind them, and the byte behind the"
               " last.")},
    {"takeRuns", takeRuns, METH_VARARGS,
     PyDoc_STR("takeRuns(buffer, position, sizeMax): the sets of PRODUCE requests, by type, topic"
               " and partition, and the byte behind the last request.")},
    {NULL, NULL, 0, NULL},
};

static int
addType(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    int status = type == NULL ? -1 : PyModule_AddObjectRef(module, name, type);
    Py_XDECREF(type);
    return status;
}

static int
prepareModule(PyObject *module)
{
    if (emptyTuple == NULL) {
        prepareChecksum(&ieee, 0xedb88320u);
        prepareChecksum(&castagnoli, 0x82f63b78u);
#if HAS_FOLDING
        __builtin_cpu_init();
        canFold = __builtin_cpu_supports("pclmul") != 0;
#endif
        emptyTuple = PyTuple_New(0);
        if (emptyTuple == NULL) {
            return -1;
        }
    }
    if (addType(module, "RecordEncoder", &RecordEncoder_spec) < 0
        || addType(module, "ColumnsEncoder", &ColumnsEncoder_spec) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepareModule},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pylogbroker._speedups",
    .m_doc = PyDoc_STR("The hot loops of pylogbroker in C; see pylogbroker.speedups."),
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&definition);
}
