package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/IBM/sarama"

	"forebay/tests/compat/play"
)

func (s *scenario) cluster(context.Context) (play.Saw, error) {
	brokers, id, err := s.admin.DescribeCluster()
	controller := false
	for _, broker := range brokers {
		controller = controller || broker.ID() == id
	}
	return play.Saw{"brokers": len(brokers), "controller": controller}, err
}

// create returns when the topic is described, too: Apache Kafka answers before all of it knows.
func (s *scenario) create(ctx context.Context, topic string, partitions int32, configs map[string]*string) error {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: configs}
	if err := s.admin.CreateTopic(topic, detail, false); err != nil {
		return err
	}
	_, err := s.partitions(ctx, topic, int(partitions))
	return err
}

func (s *scenario) createTopic(ctx context.Context) (play.Saw, error) {
	configs := map[string]*string{"retention.ms": new("86400000"), "max.message.bytes": new("200000")}
	if err := s.create(ctx, s.records, play.Partitions, configs); err != nil {
		return nil, err
	}
	return s.partitions(ctx, s.records, play.Partitions)
}

// partitions waits for their number.
func (s *scenario) partitions(ctx context.Context, topic string, want int) (play.Saw, error) {
	var described *sarama.TopicMetadata
	err := play.Until(ctx, func() (bool, error) {
		topics, err := s.admin.DescribeTopics([]string{topic})
		if err != nil {
			return false, err
		}
		described = topics[0]
		return len(described.Partitions) == want, nil
	})
	if described == nil {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%s has %d partitions (%v): %w", topic, len(described.Partitions), described.Err, err)
	}
	return play.Saw{"partitions": len(described.Partitions)}, nil
}

func (s *scenario) createExistingTopic(ctx context.Context) (play.Saw, error) {
	return refused(s.create(ctx, s.records, play.Partitions, nil), "TOPIC_ALREADY_EXISTS")
}

func (s *scenario) createInvalidTopic(ctx context.Context) (play.Saw, error) {
	return refused(s.create(ctx, s.invalid, 1, nil), "INVALID_TOPIC_EXCEPTION")
}

func (s *scenario) createInvalidConfig(ctx context.Context) (play.Saw, error) {
	return refused(s.create(ctx, s.odd, 1, map[string]*string{"cleanup.policy": new("sometimes")}), "INVALID_CONFIG")
}

func (s *scenario) createPartitions(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.grown, 1, nil); err != nil {
		return nil, err
	}
	if err := s.admin.CreatePartitions(s.grown, 4, nil, false); err != nil {
		return nil, err
	}
	return s.partitions(ctx, s.grown, 4)
}

func (s *scenario) createFewerPartitions(context.Context) (play.Saw, error) {
	return refused(s.admin.CreatePartitions(s.grown, 2, nil, false), "INVALID_PARTITIONS")
}

func (s *scenario) configs(kind sarama.ConfigResourceType, name string, keys ...string) (play.Saw, error) {
	resource := &sarama.ConfigResource{Type: kind, Name: name, ConfigNames: keys}
	described, err := s.admin.DescribeConfigs([]*sarama.ConfigResource{resource}, sarama.DescribeConfigsOptions{})
	if err != nil {
		return nil, err
	}
	saw := play.Saw{}
	for _, each := range described {
		if each.ErrorCode != sarama.ErrNoError {
			return nil, fmt.Errorf("%s: %w", each.ErrorMsg, each.ErrorCode)
		}
		for _, entry := range each.Configs {
			saw[entry.Name] = entry.Value
		}
	}
	return saw, nil
}

func (s *scenario) describeConfigs(context.Context) (play.Saw, error) {
	return s.configs(sarama.TopicResource, s.records, "retention.ms", "max.message.bytes")
}

func (s *scenario) alterConfigs(ctx context.Context) (play.Saw, error) {
	change := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: new("3600000")},
	}
	if err := s.admin.IncrementalAlterConfig(sarama.TopicResource, s.grown, change, false); err != nil {
		return nil, err
	}
	var saw play.Saw
	err := play.Until(ctx, func() (bool, error) {
		var err error
		saw, err = s.configs(sarama.TopicResource, s.grown, "retention.ms")
		return saw["retention.ms"] == "3600000", err
	})
	return saw, err
}

func (s *scenario) describeBrokerConfigs(context.Context) (play.Saw, error) {
	broker := s.client.Brokers()[0]
	configs, err := s.configs(sarama.BrokerResource, strconv.Itoa(int(broker.ID())))
	return play.Saw{"described": len(configs) > 0}, err
}

// deleteRecords asks the partition's leader: the admin's call of that name keeps the low watermark to itself.
func (s *scenario) deleteRecords(context.Context) (play.Saw, error) {
	leader, err := s.client.Leader(s.line, 0)
	if err != nil {
		return nil, err
	}
	answer, err := leader.DeleteRecords(&sarama.DeleteRecordsRequest{
		Topics:  map[string]*sarama.DeleteRecordsRequestTopic{s.line: {PartitionOffsets: map[int32]int64{0: 5}}},
		Timeout: s.client.Config().Admin.Timeout,
	})
	if err != nil {
		return nil, err
	}
	topic, found := answer.Topics[s.line]
	if !found || topic.Partitions[0] == nil {
		return nil, errors.New("no answer for the partition")
	}
	if refusal := topic.Partitions[0].Err; refusal != sarama.ErrNoError {
		return nil, refusal
	}
	earliest, err := s.client.GetOffset(s.line, 0, sarama.OffsetOldest)
	return play.Saw{"low_watermark": topic.Partitions[0].LowWatermark, "earliest": earliest}, err
}

func (s *scenario) missingTopic(context.Context) (play.Saw, error) {
	return refused(s.send(config(), &sarama.ProducerMessage{Topic: s.nowhere, Value: sarama.StringEncoder("lost")}), "UNKNOWN_TOPIC_OR_PARTITION")
}

func (s *scenario) deleteTopic(ctx context.Context) (play.Saw, error) {
	if err := s.admin.DeleteTopic(s.grown); err != nil {
		return nil, err
	}
	err := play.Until(ctx, func() (bool, error) {
		topics, err := s.admin.ListTopics()
		_, listed := topics[s.grown]
		return !listed, err
	})
	return play.Saw{"listed": false}, err
}

func (s *scenario) deleteMissingTopic(context.Context) (play.Saw, error) {
	return refused(s.admin.DeleteTopic(s.nowhere), "UNKNOWN_TOPIC_OR_PARTITION")
}
