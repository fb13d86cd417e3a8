package play

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

const (
	// Partitions of the topic of records.
	Partitions = 3
	// RecordCount over all its partitions.
	RecordCount = 60

	codecRecords    = 10
	tooLargeBytes   = 300_000
	firstTimeMillis = 1_600_000_000_000
)

// Header of a record.
type Header struct {
	Name  string
	Value []byte
}

// Record as it is produced and as it was read. A nil Value is Kafka's null.
type Record struct {
	Partition  int32
	Offset     int64
	TimeMillis int64
	Key        string
	Value      []byte
	Headers    []Header
}

// Records are those of the step `produce`, in the order of their numbers; Offset is where each one belongs.
func Records() []Record {
	records := make([]Record, RecordCount)
	for i := range records {
		records[i] = Record{
			Partition:  int32(i % Partitions),
			Offset:     int64(i / Partitions),
			TimeMillis: firstTimeMillis + 1000*int64(i),
			Key:        fmt.Sprintf("key-%d", i),
			Headers:    []Header{{"index", []byte(strconv.Itoa(i))}, {"empty", []byte{}}},
		}
		if i%10 != 9 {
			records[i].Value = fmt.Appendf(nil, "value-%d", i)
		}
	}
	return records
}

// Digest is the README's D.
func Digest(records []Record) string {
	lines := make([]string, 0, len(records))
	for _, r := range records {
		value := "null"
		if r.Value != nil {
			value = string(r.Value)
		}
		headers := make([]string, 0, len(r.Headers))
		for _, h := range r.Headers {
			headers = append(headers, h.Name+"="+string(h.Value))
		}
		lines = append(lines, fmt.Sprintf("%d %d %d %s %s %s\n", r.Partition, r.Offset, r.TimeMillis, r.Key, value, strings.Join(headers, ",")))
	}
	sort.Strings(lines)
	digest := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(digest[:])
}

// CodecValues are the values produced with one codec.
func CodecValues(codec string) []string {
	values := make([]string, codecRecords)
	for j := range values {
		values[j] = fmt.Sprintf("%s-%d-%s", codec, j, strings.Repeat("x", 100))
	}
	return values
}

// CountCodecs says of each codec how many of its values are among those read.
func CountCodecs(codecs []string, read []string) Saw {
	times := map[string]int{}
	for _, value := range read {
		times[value]++
	}
	saw := Saw{}
	for _, codec := range codecs {
		right := 0
		for _, value := range CodecValues(codec) {
			if times[value] == 1 {
				right++
			}
		}
		saw[codec] = right
	}
	return saw
}

// TooLarge is a value that no codec makes smaller.
func TooLarge() []byte {
	value := make([]byte, tooLargeBytes)
	if _, err := rand.Read(value); err != nil {
		panic(err)
	}
	return value
}
