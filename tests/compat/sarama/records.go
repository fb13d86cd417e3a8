package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/IBM/sarama"

	"forebay/tests/compat/play"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

// send returns when all are acknowledged; each message then knows its offset.
func (s *scenario) send(config *sarama.Config, messages ...*sarama.ProducerMessage) error {
	producer, err := sarama.NewSyncProducer([]string{s.bootstrap}, config)
	if err != nil {
		return err
	}
	return errors.Join(producer.SendMessages(messages), producer.Close())
}

func (s *scenario) produce(context.Context) (play.Saw, error) {
	var messages []*sarama.ProducerMessage
	for _, r := range play.Records() {
		message := &sarama.ProducerMessage{
			Topic:     s.records,
			Partition: r.Partition,
			Timestamp: time.UnixMilli(r.TimeMillis),
			Key:       sarama.StringEncoder(r.Key),
		}
		if r.Value != nil {
			message.Value = sarama.ByteEncoder(r.Value)
		}
		for _, h := range r.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
		}
		messages = append(messages, message)
	}
	if err := s.send(config(), messages...); err != nil {
		return nil, err
	}
	saw := play.Saw{}
	for _, message := range messages {
		saw[strconv.Itoa(int(message.Partition))] = message.Offset + 1
	}
	return saw, nil
}

func (s *scenario) produceWithCodecs(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.codecs, 1, nil); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(codecs))
	for _, name := range names {
		compressing := config()
		compressing.Producer.Compression = codecs[name]
		var messages []*sarama.ProducerMessage
		for _, value := range play.CodecValues(name) {
			messages = append(messages, &sarama.ProducerMessage{Topic: s.codecs, Value: sarama.StringEncoder(value)})
		}
		if err := s.send(compressing, messages...); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	end, err := s.client.GetOffset(s.codecs, 0, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	read, err := s.read(ctx, s.codecs, 0, sarama.OffsetOldest, end)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, message := range read {
		values = append(values, string(message.Value))
	}
	return play.CountCodecs(names, values), nil
}

// read assigns one partition and reads so many records.
func (s *scenario) read(ctx context.Context, topic string, partition int32, start, count int64) ([]*sarama.ConsumerMessage, error) {
	consumer, err := sarama.NewConsumerFromClient(s.client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	reader, err := consumer.ConsumePartition(topic, partition, start)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var read []*sarama.ConsumerMessage
	for int64(len(read)) < count {
		select {
		case message := <-reader.Messages():
			read = append(read, message)
		case err := <-reader.Errors():
			return nil, fmt.Errorf("partition %d after %d of %d records: %w", partition, len(read), count, err)
		case <-ctx.Done():
			return nil, fmt.Errorf("partition %d after %d of %d records: %w", partition, len(read), count, ctx.Err())
		}
	}
	return read, nil
}

func (s *scenario) consume(ctx context.Context) (play.Saw, error) {
	var records []play.Record
	for partition := range int32(play.Partitions) {
		end, err := s.client.GetOffset(s.records, partition, sarama.OffsetNewest)
		if err != nil {
			return nil, err
		}
		read, err := s.read(ctx, s.records, partition, sarama.OffsetOldest, end)
		if err != nil {
			return nil, err
		}
		for _, m := range read {
			record := play.Record{
				Partition:  m.Partition,
				Offset:     m.Offset,
				TimeMillis: m.Timestamp.UnixMilli(),
				Key:        string(m.Key),
				Value:      m.Value,
			}
			for _, h := range m.Headers {
				record.Headers = append(record.Headers, play.Header{Name: string(h.Key), Value: h.Value})
			}
			records = append(records, record)
		}
	}
	return play.Saw{"records": len(records), "digest": play.Digest(records)}, nil
}

func (s *scenario) seek(ctx context.Context) (play.Saw, error) {
	read, err := s.read(ctx, s.records, 1, 7, 1)
	if err != nil {
		return nil, err
	}
	return play.Saw{"offset": read[0].Offset, "key": string(read[0].Key)}, nil
}

func (s *scenario) offsets(context.Context) (play.Saw, error) {
	earliest, err := s.client.GetOffset(s.records, 0, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	latest, err := s.client.GetOffset(s.records, 0, sarama.OffsetNewest)
	return play.Saw{"earliest": earliest, "latest": latest}, err
}

func (s *scenario) offsetsByTime(context.Context) (play.Saw, error) {
	saw := play.Saw{}
	for name, millis := range map[string]int64{"found": 1600000006001, "none": 1700000000000} {
		offset, err := s.client.GetOffset(s.records, 0, millis)
		if err != nil {
			return nil, err
		}
		saw[name] = offset
		if offset == -1 {
			saw[name] = nil
		}
	}
	return saw, nil
}

// fetchOutOfRange needs no Fetch: Sarama compares a start with the ends of the partition, which it asks for.
func (s *scenario) fetchOutOfRange(ctx context.Context) (play.Saw, error) {
	_, err := s.read(ctx, s.line, 0, 1000, 1)
	return refused(err, "OFFSET_OUT_OF_RANGE")
}

func (s *scenario) idempotent(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.once, 1, nil); err != nil {
		return nil, err
	}
	once := config()
	once.Producer.Idempotent = true
	once.Net.MaxOpenRequests = 1 // Sarama refuses an idempotent producer with more
	var messages []*sarama.ProducerMessage
	for i := range 100 {
		messages = append(messages, &sarama.ProducerMessage{Topic: s.once, Value: sarama.StringEncoder(fmt.Sprintf("once-%d", i))})
	}
	if err := s.send(once, messages...); err != nil {
		return nil, err
	}
	latest, err := s.client.GetOffset(s.once, 0, sarama.OffsetNewest)
	return play.Saw{"latest": latest}, err
}

func (s *scenario) messageTooLarge(context.Context) (play.Saw, error) {
	return refused(s.send(config(), &sarama.ProducerMessage{Topic: s.records, Value: sarama.ByteEncoder(play.TooLarge())}), "MESSAGE_TOO_LARGE")
}
