/* CRC-32C: by the processor's instruction where there is one (three lanes would be quicker still, and were not needed), else by a table. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE4_2__
#include <nmmintrin.h>

static uint32_t checksum(const uint8_t *from, size_t size)
{
    uint64_t found = 0xFFFFFFFF;
    for (; size >= 8; from += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, from, sizeof word);
        found = _mm_crc32_u64(found, word);
    }
    for (; size; size--) found = _mm_crc32_u8(found, *from++);
    return ~(uint32_t)found;
}
#else

static uint32_t checksum(const uint8_t *from, size_t size)
{
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t entry = i;
            for (int bit = 0; bit < 8; bit++) entry = entry >> 1 ^ (entry & 1 ? 0x82F63B78 : 0);
            table[i] = entry;
        }
    uint32_t found = 0xFFFFFFFF;
    for (; size; size--) found = found >> 8 ^ table[(found ^ *from++) & 0xFF];
    return ~found;
}
#endif
