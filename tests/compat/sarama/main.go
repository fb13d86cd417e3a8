// The scenario of the README played by Sarama.
package main

import (
	"errors"
	"log"
	"time"

	"github.com/IBM/sarama"

	"forebay/tests/compat/play"
)

// soon stands in for Sarama's intervals of seconds: heartbeats, commits, waits for more records.
const soon = 200 * time.Millisecond

type scenario struct {
	bootstrap string
	client    sarama.Client
	admin     sarama.ClusterAdmin

	records, grown, codecs, line, once, nowhere string
	pair, resume, nobody                        string
	invalid, odd                                string
}

func main() {
	bootstrap, prefix := play.Arguments()
	s := &scenario{
		bootstrap: bootstrap,
		records:   prefix + "-records",
		grown:     prefix + "-grown",
		codecs:    prefix + "-codecs",
		line:      prefix + "-line",
		once:      prefix + "-once",
		nowhere:   prefix + "-nowhere",
		invalid:   prefix + " bad!",
		odd:       prefix + "-odd",
		pair:      prefix + "-pair",
		resume:    prefix + "-resume",
		nobody:    prefix + "-nobody",
	}
	var err error
	if s.client, err = sarama.NewClient([]string{bootstrap}, config()); err != nil {
		log.Fatal(err)
	}
	if s.admin, err = sarama.NewClusterAdminFromClient(s.client); err != nil {
		log.Fatal(err)
	}
	defer s.admin.Close()

	play.Run([]play.Step{
		{Name: "cluster", Do: s.cluster},
		{Name: "create_topic", Do: s.createTopic},
		{Name: "create_existing_topic", Do: s.createExistingTopic},
		{Name: "create_invalid_topic", Do: s.createInvalidTopic},
		{Name: "create_invalid_config", Do: s.createInvalidConfig},
		{Name: "create_partitions", Do: s.createPartitions},
		{Name: "create_fewer_partitions", Do: s.createFewerPartitions},
		{Name: "describe_configs", Do: s.describeConfigs},
		{Name: "alter_configs", Do: s.alterConfigs},
		{Name: "describe_broker_configs", Do: s.describeBrokerConfigs},
		{Name: "produce", Do: s.produce},
		{Name: "codecs", Do: s.produceWithCodecs},
		{Name: "consume", Do: s.consume},
		{Name: "seek", Do: s.seek},
		{Name: "offsets", Do: s.offsets},
		{Name: "offsets_by_time", Do: s.offsetsByTime},
		{Name: "group_of_two", Do: s.groupOfTwo},
		{Name: "commit_and_resume", Do: s.commitAndResume},
		{Name: "list_groups", Do: s.listGroups},
		{Name: "describe_group", Do: s.describeGroup},
		{Name: "list_group_offsets", Do: s.listGroupOffsets},
		{Name: "delete_busy_group", Do: s.deleteBusyGroup},
		{Name: "delete_group", Do: s.deleteGroup},
		{Name: "delete_missing_group", Do: s.deleteMissingGroup},
		{Name: "delete_records", Do: s.deleteRecords},
		{Name: "fetch_out_of_range", Do: s.fetchOutOfRange},
		{Name: "idempotent", Do: s.idempotent},
		{Name: "message_too_large", Do: s.messageTooLarge},
		{Name: "missing_topic", Do: s.missingTopic},
		{Name: "delete_topic", Do: s.deleteTopic},
		{Name: "delete_missing_topic", Do: s.deleteMissingTopic},
	})
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Metadata.Retry.Backoff = soon
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Consumer.MaxWaitTime = soon
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = soon
	config.Consumer.Group.Heartbeat.Interval = soon
	config.Consumer.Group.Rebalance.Retry.Backoff = soon
	return config
}

// refused takes the first of the errors of a producer, which has one for each message.
func refused(err error, want string) (play.Saw, error) {
	return play.Refused(err, want, func(err error) string {
		var produced sarama.ProducerErrors
		if errors.As(err, &produced) && len(produced) > 0 {
			err = produced[0]
		}
		var answered sarama.KError
		if errors.As(err, &answered) {
			return play.ErrorName(int16(answered))
		}
		return ""
	})
}
