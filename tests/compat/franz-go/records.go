package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"forebay/tests/compat/play"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func (s *scenario) producer(codec string) (*kgo.Client, error) {
	return s.client(
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
}

func (s *scenario) produce(ctx context.Context) (play.Saw, error) {
	client, err := s.producer("none")
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, r := range play.Records() {
		record := &kgo.Record{
			Topic:     s.records,
			Partition: r.Partition,
			Timestamp: time.UnixMilli(r.TimeMillis),
			Key:       []byte(r.Key),
			Value:     r.Value,
		}
		for _, h := range r.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		records = append(records, record)
	}
	results := client.ProduceSync(ctx, records...)
	saw := play.Saw{}
	for _, result := range results {
		saw[strconv.Itoa(int(result.Record.Partition))] = result.Record.Offset + 1
	}
	return saw, results.FirstErr()
}

func (s *scenario) produceWithCodecs(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.codecs, 1, nil); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(codecs))
	for _, name := range names {
		client, err := s.producer(name)
		if err != nil {
			return nil, err
		}
		var records []*kgo.Record
		for _, value := range play.CodecValues(name) {
			records = append(records, &kgo.Record{Topic: s.codecs, Value: []byte(value)})
		}
		err = client.ProduceSync(ctx, records...).FirstErr()
		client.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	read, err := s.read(ctx, s.codecs, 1)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, record := range read {
		values = append(values, string(record.Value))
	}
	return play.CountCodecs(names, values), nil
}

// read assigns the partitions and reads them from the beginning to where they end now.
func (s *scenario) read(ctx context.Context, topic string, partitions int32) ([]*kgo.Record, error) {
	ends, err := s.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	var expected int64
	assigned := map[int32]kgo.Offset{}
	for partition := range partitions {
		end, _ := ends.Lookup(topic, partition)
		expected += end.Offset
		assigned[partition] = kgo.NewOffset().AtStart()
	}
	client, err := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: assigned}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var read []*kgo.Record
	for int64(len(read)) < expected {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("after %d of %d records: %w", len(read), expected, err)
		}
		read = append(read, fetches.Records()...)
	}
	return read, nil
}

func (s *scenario) consume(ctx context.Context) (play.Saw, error) {
	read, err := s.read(ctx, s.records, play.Partitions)
	if err != nil {
		return nil, err
	}
	var records []play.Record
	for _, r := range read {
		record := play.Record{Partition: r.Partition, Offset: r.Offset, TimeMillis: r.Timestamp.UnixMilli(), Key: string(r.Key), Value: r.Value}
		for _, h := range r.Headers {
			record.Headers = append(record.Headers, play.Header{Name: h.Key, Value: h.Value})
		}
		records = append(records, record)
	}
	return play.Saw{"records": len(records), "digest": play.Digest(records)}, nil
}

// seek has read from the partition before: kgo seeks in nothing else.
func (s *scenario) seek(ctx context.Context) (play.Saw, error) {
	client, err := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.records: {1: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := client.PollRecords(ctx, 1).Err(); err != nil {
		return nil, err
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{s.records: {1: {Epoch: -1, Offset: 7}}})
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return nil, err
	}
	record := fetches.Records()[0]
	return play.Saw{"offset": record.Offset, "key": string(record.Key)}, nil
}

// offset of partition 0 of the one topic that was asked about.
func (s *scenario) offset(listed kadm.ListedOffsets, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	for topic := range listed {
		if partition, found := listed.Lookup(topic, 0); found {
			return partition.Offset, partition.Err
		}
	}
	return 0, fmt.Errorf("no partition 0 in %v", listed)
}

func (s *scenario) offsets(ctx context.Context) (play.Saw, error) {
	earliest, err := s.offset(s.admin.ListStartOffsets(ctx, s.records))
	if err != nil {
		return nil, err
	}
	latest, err := s.offset(s.admin.ListEndOffsets(ctx, s.records))
	return play.Saw{"earliest": earliest, "latest": latest}, err
}

func (s *scenario) offsetsByTime(ctx context.Context) (play.Saw, error) {
	found, err := s.offset(s.admin.ListOffsetsAfterMilli(ctx, 1600000006001, s.records))
	if err != nil {
		return nil, err
	}
	// kadm answers a time after the last record with the end of the partition, which it asks for besides.
	listed, err := s.admin.ListOffsetsAfterMilli(ctx, 1700000000000, s.records)
	if err != nil {
		return nil, err
	}
	saw := play.Saw{"found": found, "none": nil}
	if none, _ := listed.Lookup(s.records, 0); none.Timestamp != -1 {
		saw["none"] = none.Offset
	}
	return saw, nil
}

func (s *scenario) fetchOutOfRange(ctx context.Context) (play.Saw, error) {
	client, err := s.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.line: {0: kgo.NewOffset().At(1000)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return refused(client.PollFetches(ctx).Err(), "OFFSET_OUT_OF_RANGE")
}

func (s *scenario) idempotent(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.once, 1, nil); err != nil {
		return nil, err
	}
	client, err := s.client() // idempotent unless told otherwise
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for i := range 100 {
		records = append(records, &kgo.Record{Topic: s.once, Value: fmt.Appendf(nil, "once-%d", i)})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, err
	}
	latest, err := s.offset(s.admin.ListEndOffsets(ctx, s.once))
	return play.Saw{"latest": latest}, err
}

func (s *scenario) messageTooLarge(ctx context.Context) (play.Saw, error) {
	client, err := s.producer("none")
	if err != nil {
		return nil, err
	}
	defer client.Close()
	err = client.ProduceSync(ctx, &kgo.Record{Topic: s.records, Value: play.TooLarge()}).FirstErr()
	return refused(err, "MESSAGE_TOO_LARGE")
}
