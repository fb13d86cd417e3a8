// The scenario of the README played by franz-go: kgo for records and groups, kadm for the rest.
package main

import (
	"errors"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"forebay/tests/compat/play"
)

// soon stands in for intervals of seconds: heartbeats, commits, waits for more records, the age up to which kadm takes metadata for new.
const soon = 200 * time.Millisecond

type scenario struct {
	bootstrap string
	admin     *kadm.Client

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
	client, err := s.client(kgo.MetadataMinAge(soon))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	s.admin = kadm.NewClient(client)

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

func (s *scenario) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.bootstrap)}, options...)...)
}

func refused(err error, want string) (play.Saw, error) {
	return play.Refused(err, want, func(err error) string {
		var answered *kerr.Error
		if errors.As(err, &answered) {
			return answered.Message
		}
		return ""
	})
}
