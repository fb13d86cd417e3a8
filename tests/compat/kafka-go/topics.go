package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/segmentio/kafka-go"

	"forebay/tests/compat/play"
)

// metadata asks the broker: a Transport answers from what it asked up to six seconds before.
func (s *scenario) metadata(ctx context.Context, topics ...string) (*kafka.MetadataResponse, error) {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: s.client.Addr, Transport: transport}
	return client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
}

func (s *scenario) cluster(ctx context.Context) (play.Saw, error) {
	cluster, err := s.metadata(ctx)
	if err != nil {
		return nil, err
	}
	controller := false
	for _, broker := range cluster.Brokers {
		controller = controller || broker == cluster.Controller
	}
	return play.Saw{"brokers": len(cluster.Brokers), "controller": controller}, nil
}

// create returns when the topic is described, too: kafka-go sees to that.
func (s *scenario) create(ctx context.Context, topic string, partitions int, configs ...kafka.ConfigEntry) error {
	created, err := s.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: configs},
	}})
	if err != nil {
		return err
	}
	return created.Errors[topic]
}

func (s *scenario) createTopic(ctx context.Context) (play.Saw, error) {
	err := s.create(ctx, s.records, play.Partitions,
		kafka.ConfigEntry{ConfigName: "retention.ms", ConfigValue: "86400000"},
		kafka.ConfigEntry{ConfigName: "max.message.bytes", ConfigValue: "200000"},
	)
	if err != nil {
		return nil, err
	}
	return s.partitions(ctx, s.records, play.Partitions)
}

// partitions waits for their number: Apache Kafka answers that there are more before all of it knows.
func (s *scenario) partitions(ctx context.Context, topic string, want int) (play.Saw, error) {
	found := 0
	err := play.Until(ctx, func() (bool, error) {
		cluster, err := s.metadata(ctx, topic)
		if err != nil {
			return false, err
		}
		found = len(cluster.Topics[0].Partitions)
		return found == want, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s has %d partitions: %w", topic, found, err)
	}
	return play.Saw{"partitions": found}, nil
}

func (s *scenario) createExistingTopic(ctx context.Context) (play.Saw, error) {
	return refused(s.create(ctx, s.records, play.Partitions), "TOPIC_ALREADY_EXISTS")
}

func (s *scenario) createInvalidTopic(ctx context.Context) (play.Saw, error) {
	return refused(s.create(ctx, s.invalid, 1), "INVALID_TOPIC_EXCEPTION")
}

func (s *scenario) createInvalidConfig(ctx context.Context) (play.Saw, error) {
	return refused(s.create(ctx, s.odd, 1, kafka.ConfigEntry{ConfigName: "cleanup.policy", ConfigValue: "sometimes"}), "INVALID_CONFIG")
}

func (s *scenario) grow(ctx context.Context, partitions int32) error {
	grown, err := s.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: s.grown, Count: partitions}},
	})
	if err != nil {
		return err
	}
	return grown.Errors[s.grown]
}

func (s *scenario) createPartitions(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.grown, 1); err != nil {
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

func (s *scenario) configs(ctx context.Context, kind kafka.ResourceType, name string, keys ...string) (play.Saw, error) {
	described, err := s.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kind, ResourceName: name, ConfigNames: keys}},
	})
	if err != nil {
		return nil, err
	}
	saw := play.Saw{}
	for _, resource := range described.Resources {
		if resource.Error != nil {
			return nil, resource.Error
		}
		for _, config := range resource.ConfigEntries {
			saw[config.ConfigName] = config.ConfigValue
		}
	}
	return saw, nil
}

func (s *scenario) describeConfigs(ctx context.Context) (play.Saw, error) {
	return s.configs(ctx, kafka.ResourceTypeTopic, s.records, "retention.ms", "max.message.bytes")
}

func (s *scenario) alterConfigs(ctx context.Context) (play.Saw, error) {
	altered, err := s.client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic,
			ResourceName: s.grown,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{
				{Name: "retention.ms", Value: "3600000", ConfigOperation: kafka.ConfigOperationSet},
			},
		}},
	})
	if err != nil {
		return nil, err
	}
	for _, resource := range altered.Resources {
		if resource.Error != nil {
			return nil, resource.Error
		}
	}
	var saw play.Saw
	err = play.Until(ctx, func() (bool, error) {
		saw, err = s.configs(ctx, kafka.ResourceTypeTopic, s.grown, "retention.ms")
		return saw["retention.ms"] == "3600000", err
	})
	return saw, err
}

func (s *scenario) describeBrokerConfigs(ctx context.Context) (play.Saw, error) {
	cluster, err := s.metadata(ctx)
	if err != nil {
		return nil, err
	}
	configs, err := s.configs(ctx, kafka.ResourceTypeBroker, strconv.Itoa(cluster.Brokers[0].ID))
	return play.Saw{"described": len(configs) > 0}, err
}

func (s *scenario) missingTopic(ctx context.Context) (play.Saw, error) {
	writer := s.writer(s.nowhere, 0)
	writer.MaxAttempts = 1
	defer writer.Close()
	return refused(writer.WriteMessages(ctx, kafka.Message{Value: []byte("lost")}), "UNKNOWN_TOPIC_OR_PARTITION")
}

func (s *scenario) dropTopic(ctx context.Context, topic string) error {
	deleted, err := s.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return deleted.Errors[topic]
}

func (s *scenario) deleteTopic(ctx context.Context) (play.Saw, error) {
	if err := s.dropTopic(ctx, s.grown); err != nil {
		return nil, err
	}
	err := play.Until(ctx, func() (bool, error) {
		cluster, err := s.metadata(ctx)
		if err != nil {
			return false, err
		}
		for _, topic := range cluster.Topics {
			if topic.Name == s.grown {
				return false, nil
			}
		}
		return true, nil
	})
	return play.Saw{"listed": false}, err
}

func (s *scenario) deleteMissingTopic(ctx context.Context) (play.Saw, error) {
	return refused(s.dropTopic(ctx, s.nowhere), "UNKNOWN_TOPIC_OR_PARTITION")
}
