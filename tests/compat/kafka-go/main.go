// The scenario of the README played by kafka-go: Reader, Writer and ConsumerGroup, which fix their own versions of Kafka's APIs, and Client, which agrees
// on them with the broker.
package main

import (
	"errors"
	"time"

	"github.com/segmentio/kafka-go"

	"forebay/tests/compat/play"
)

// soon stands in for kafka-go's intervals of seconds: heartbeats, pauses before it tries again, waits for more records.
const soon = 200 * time.Millisecond

type scenario struct {
	bootstrap string
	client    *kafka.Client

	records, grown, codecs, line, nowhere string
	pair, resume, nobody                  string
	invalid, odd                          string
}

func main() {
	bootstrap, prefix := play.Arguments()
	s := &scenario{
		bootstrap: bootstrap,
		client:    &kafka.Client{Addr: kafka.TCP(bootstrap), Transport: &kafka.Transport{}},
		records:   prefix + "-records",
		grown:     prefix + "-grown",
		codecs:    prefix + "-codecs",
		line:      prefix + "-line",
		nowhere:   prefix + "-nowhere",
		invalid:   prefix + " bad!",
		odd:       prefix + "-odd",
		pair:      prefix + "-pair",
		resume:    prefix + "-resume",
		nobody:    prefix + "-nobody",
	}
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
		{Name: "fetch_out_of_range", Do: s.fetchOutOfRange},
		{Name: "message_too_large", Do: s.messageTooLarge},
		{Name: "missing_topic", Do: s.missingTopic},
		{Name: "delete_topic", Do: s.deleteTopic},
		{Name: "delete_missing_topic", Do: s.deleteMissingTopic},
	})
}

// refused takes the first of the errors of a Writer, which has one for each message.
func refused(err error, want string) (play.Saw, error) {
	return play.Refused(err, want, func(err error) string {
		var written kafka.WriteErrors
		if errors.As(err, &written) {
			for _, each := range written {
				if each != nil {
					err = each
					break
				}
			}
		}
		var answered kafka.Error
		if errors.As(err, &answered) {
			return play.ErrorName(int16(answered))
		}
		return ""
	})
}
