package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"forebay/tests/compat/play"
)

func (s *scenario) cluster(ctx context.Context) (play.Saw, error) {
	cluster, err := s.admin.BrokerMetadata(ctx)
	if err != nil {
		return nil, err
	}
	controller := false
	for _, broker := range cluster.Brokers {
		controller = controller || broker.NodeID == cluster.Controller
	}
	return play.Saw{"brokers": len(cluster.Brokers), "controller": controller}, nil
}

// create returns when the topic is described, too: Apache Kafka answers before all of it knows.
func (s *scenario) create(ctx context.Context, topic string, partitions int32, configs map[string]*string) error {
	if _, err := s.admin.CreateTopic(ctx, partitions, 1, configs, topic); err != nil {
		return err
	}
	_, err := s.partitions(ctx, topic, int(partitions))
	return err
}

func (s *scenario) createTopic(ctx context.Context) (play.Saw, error) {
	configs := map[string]*string{"retention.ms": kadm.StringPtr("86400000"), "max.message.bytes": kadm.StringPtr("200000")}
	if err := s.create(ctx, s.records, play.Partitions, configs); err != nil {
		return nil, err
	}
	return s.partitions(ctx, s.records, play.Partitions)
}

// partitions waits for their number.
func (s *scenario) partitions(ctx context.Context, topic string, want int) (play.Saw, error) {
	var described kadm.TopicDetail
	err := play.Until(ctx, func() (bool, error) {
		topics, err := s.admin.ListTopics(ctx, topic)
		described = topics[topic]
		return len(described.Partitions) == want, err
	})
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
	return refused(s.create(ctx, s.odd, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("sometimes")}), "INVALID_CONFIG")
}

func (s *scenario) grow(ctx context.Context, partitions int) error {
	grown, err := s.admin.UpdatePartitions(ctx, partitions, s.grown)
	if err != nil {
		return err
	}
	return grown.Error()
}

func (s *scenario) createPartitions(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.grown, 1, nil); err != nil {
		return nil, err
	}
	if err := s.grow(ctx, 4); err != nil {
		return nil, err
	}
	return s.partitions(ctx, s.grown, 4)
}

func (s *scenario) createFewerPartitions(ctx context.Context) (play.Saw, error) {
	return refused(s.grow(ctx, 2), "INVALID_PARTITIONS")
}

func (s *scenario) configs(ctx context.Context, topic string, keys ...string) (play.Saw, error) {
	described, err := s.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, err
	}
	resource, err := described.On(topic, nil)
	if err != nil {
		return nil, err
	}
	saw := play.Saw{}
	for _, config := range resource.Configs {
		for _, key := range keys {
			if config.Key == key {
				saw[key] = config.MaybeValue()
			}
		}
	}
	return saw, resource.Err
}

func (s *scenario) describeConfigs(ctx context.Context) (play.Saw, error) {
	return s.configs(ctx, s.records, "retention.ms", "max.message.bytes")
}

func (s *scenario) alterConfigs(ctx context.Context) (play.Saw, error) {
	change := kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("3600000")}
	altered, err := s.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{change}, s.grown)
	if err != nil {
		return nil, err
	}
	for _, topic := range altered {
		if topic.Err != nil {
			return nil, topic.Err
		}
	}
	var saw play.Saw
	err = play.Until(ctx, func() (bool, error) {
		saw, err = s.configs(ctx, s.grown, "retention.ms")
		return saw["retention.ms"] == "3600000", err
	})
	return saw, err
}

func (s *scenario) describeBrokerConfigs(ctx context.Context) (play.Saw, error) {
	brokers, err := s.admin.ListBrokers(ctx)
	if err != nil {
		return nil, err
	}
	described, err := s.admin.DescribeBrokerConfigs(ctx, brokers.NodeIDs()...)
	if err != nil {
		return nil, err
	}
	entries := 0
	for _, broker := range described {
		if broker.Err != nil {
			return nil, broker.Err
		}
		entries += len(broker.Configs)
	}
	return play.Saw{"described": entries > 0}, nil
}

func (s *scenario) deleteRecords(ctx context.Context) (play.Saw, error) {
	var before kadm.Offsets
	before.AddOffset(s.line, 0, 5, -1)
	deleted, err := s.admin.DeleteRecords(ctx, before)
	if err != nil {
		return nil, err
	}
	partition, found := deleted.Lookup(s.line, 0)
	if !found {
		return nil, fmt.Errorf("no answer for %s 0", s.line)
	}
	if partition.Err != nil {
		return nil, partition.Err
	}
	earliest, err := s.offset(s.admin.ListStartOffsets(ctx, s.line))
	return play.Saw{"low_watermark": partition.LowWatermark, "earliest": earliest}, err
}

func (s *scenario) missingTopic(ctx context.Context) (play.Saw, error) {
	client, err := s.client(kgo.UnknownTopicRetries(0))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	err = client.ProduceSync(ctx, &kgo.Record{Topic: s.nowhere, Value: []byte("lost")}).FirstErr()
	return refused(err, "UNKNOWN_TOPIC_OR_PARTITION")
}

func (s *scenario) deleteTopic(ctx context.Context) (play.Saw, error) {
	if _, err := s.admin.DeleteTopic(ctx, s.grown); err != nil {
		return nil, err
	}
	err := play.Until(ctx, func() (bool, error) {
		topics, err := s.admin.ListTopics(ctx)
		return !topics.Has(s.grown), err
	})
	return play.Saw{"listed": false}, err
}

func (s *scenario) deleteMissingTopic(ctx context.Context) (play.Saw, error) {
	_, err := s.admin.DeleteTopic(ctx, s.nowhere)
	return refused(err, "UNKNOWN_TOPIC_OR_PARTITION")
}
