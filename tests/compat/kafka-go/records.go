package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"forebay/tests/compat/play"
)

var codecs = map[string]kafka.Compression{
	"none":   0,
	"gzip":   kafka.Gzip,
	"snappy": kafka.Snappy,
	"lz4":    kafka.Lz4,
	"zstd":   kafka.Zstd,
}

func (s *scenario) writer(topic string, codec kafka.Compression) *kafka.Writer {
	return &kafka.Writer{
		Addr:         s.client.Addr,
		Transport:    s.client.Transport,
		Topic:        topic,
		Compression:  codec,
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 10 * time.Millisecond,
	}
}

func (s *scenario) reader(topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers:               []string{s.bootstrap},
		Topic:                 topic,
		Partition:             partition,
		MaxWait:               soon,
		OffsetOutOfRangeError: true,
	})
}

// produce tells the Writer the partition of a message in a field that is not sent: a Writer always asks a balancer.
func (s *scenario) produce(ctx context.Context) (play.Saw, error) {
	writer := s.writer(s.records, codecs["none"])
	writer.Balancer = kafka.BalancerFunc(func(message kafka.Message, _ ...int) int { return message.WriterData.(int) })
	writer.BatchSize = play.RecordCount / play.Partitions
	acknowledged := make(chan kafka.Message, play.RecordCount)
	writer.Completion = func(messages []kafka.Message, err error) {
		for _, message := range messages {
			if err == nil {
				acknowledged <- message
			}
		}
	}
	var messages []kafka.Message
	for _, r := range play.Records() {
		message := kafka.Message{Key: []byte(r.Key), Value: r.Value, Time: time.UnixMilli(r.TimeMillis), WriterData: int(r.Partition)}
		for _, h := range r.Headers {
			message.Headers = append(message.Headers, kafka.Header{Key: h.Name, Value: h.Value})
		}
		messages = append(messages, message)
	}
	if err := errors.Join(writer.WriteMessages(ctx, messages...), writer.Close()); err != nil {
		return nil, err
	}
	close(acknowledged)
	saw := play.Saw{}
	for message := range acknowledged {
		partition := strconv.Itoa(message.Partition)
		if before, _ := saw[partition].(int64); message.Offset >= before {
			saw[partition] = message.Offset + 1
		}
	}
	return saw, nil
}

func (s *scenario) produceWithCodecs(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.codecs, 1); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(codecs))
	for _, name := range names {
		var messages []kafka.Message
		for _, value := range play.CodecValues(name) {
			messages = append(messages, kafka.Message{Value: []byte(value)})
		}
		if err := s.write(ctx, s.codecs, codecs[name], messages); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	read, err := s.read(ctx, s.codecs, 0)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, message := range read {
		values = append(values, string(message.Value))
	}
	return play.CountCodecs(names, values), nil
}

func (s *scenario) write(ctx context.Context, topic string, codec kafka.Compression, messages []kafka.Message) error {
	writer := s.writer(topic, codec)
	return errors.Join(writer.WriteMessages(ctx, messages...), writer.Close())
}

// read reads the partition from the beginning to where it ends now.
func (s *scenario) read(ctx context.Context, topic string, partition int) ([]kafka.Message, error) {
	ends, err := s.listOffsets(ctx, topic, kafka.LastOffsetOf(partition))
	if err != nil {
		return nil, err
	}
	reader := s.reader(topic, partition)
	defer reader.Close()
	var read []kafka.Message
	for int64(len(read)) < ends.LastOffset {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return nil, fmt.Errorf("partition %d after %d of %d records: %w", partition, len(read), ends.LastOffset, err)
		}
		read = append(read, message)
	}
	return read, nil
}

func (s *scenario) consume(ctx context.Context) (play.Saw, error) {
	var records []play.Record
	for partition := range play.Partitions {
		read, err := s.read(ctx, s.records, partition)
		if err != nil {
			return nil, err
		}
		for _, m := range read {
			record := play.Record{
				Partition:  int32(m.Partition),
				Offset:     m.Offset,
				TimeMillis: m.Time.UnixMilli(),
				Key:        string(m.Key),
				Value:      m.Value,
			}
			for _, h := range m.Headers {
				record.Headers = append(record.Headers, play.Header{Name: h.Key, Value: h.Value})
			}
			records = append(records, record)
		}
	}
	return play.Saw{"records": len(records), "digest": play.Digest(records)}, nil
}

func (s *scenario) seek(ctx context.Context) (play.Saw, error) {
	reader := s.reader(s.records, 1)
	defer reader.Close()
	if err := reader.SetOffset(7); err != nil {
		return nil, err
	}
	message, err := reader.ReadMessage(ctx)
	return play.Saw{"offset": message.Offset, "key": string(message.Key)}, err
}

// listOffsets asks about one partition.
func (s *scenario) listOffsets(ctx context.Context, topic string, requests ...kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
	listed, err := s.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: requests}})
	if err != nil {
		return kafka.PartitionOffsets{}, err
	}
	if len(listed.Topics[topic]) != 1 {
		return kafka.PartitionOffsets{}, fmt.Errorf("%d answers for one partition", len(listed.Topics[topic]))
	}
	return listed.Topics[topic][0], listed.Topics[topic][0].Error
}

func (s *scenario) offsets(ctx context.Context) (play.Saw, error) {
	listed, err := s.listOffsets(ctx, s.records, kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0))
	return play.Saw{"earliest": listed.FirstOffset, "latest": listed.LastOffset}, err
}

func (s *scenario) offsetsByTime(ctx context.Context) (play.Saw, error) {
	saw := play.Saw{}
	for name, millis := range map[string]int64{"found": 1600000006001, "none": 1700000000000} {
		listed, err := s.listOffsets(ctx, s.records, kafka.TimeOffsetOf(0, time.UnixMilli(millis)))
		if err != nil {
			return nil, err
		}
		saw[name] = nil
		for offset := range listed.Offsets {
			if offset != -1 {
				saw[name] = offset
			}
		}
	}
	return saw, nil
}

func (s *scenario) fetchOutOfRange(ctx context.Context) (play.Saw, error) {
	reader := s.reader(s.line, 0)
	defer reader.Close()
	if err := reader.SetOffset(1000); err != nil {
		return nil, err
	}
	_, err := reader.ReadMessage(ctx)
	return refused(err, "OFFSET_OUT_OF_RANGE")
}

func (s *scenario) messageTooLarge(ctx context.Context) (play.Saw, error) {
	return refused(s.write(ctx, s.records, codecs["none"], []kafka.Message{{Value: play.TooLarge()}}), "MESSAGE_TOO_LARGE")
}
