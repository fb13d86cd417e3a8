package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"forebay/tests/compat/play"
)

func (s *scenario) groupOfTwo(ctx context.Context) (play.Saw, error) {
	return play.GroupOfTwo(ctx, s.join)
}

// join is cooperative-sticky, as kgo is by default: assigned and revoked partitions are told apart.
func (s *scenario) join(ctx context.Context, member *play.Member) (func() error, error) {
	adds := func(sign int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			member.Adds(sign * len(partitions[s.records]))
		}
	}
	commits := func(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			member.Failed(fmt.Errorf("commit before giving away: %w", err))
		}
		adds(-1)(ctx, client, partitions)
	}
	client, err := s.client(
		kgo.ConsumerGroup(s.pair),
		kgo.ConsumeTopics(s.records),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(soon),
		kgo.FetchMaxWait(soon),
		kgo.AutoCommitInterval(soon),
		kgo.OnPartitionsAssigned(adds(+1)),
		kgo.OnPartitionsRevoked(commits),
		kgo.OnPartitionsLost(adds(-1)),
	)
	if err != nil {
		return nil, err
	}
	reading, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for reading.Err() == nil {
			fetches := client.PollFetches(reading)
			fetches.EachError(func(_ string, partition int32, err error) {
				if !errors.Is(err, context.Canceled) {
					member.Failed(fmt.Errorf("partition %d: %w", partition, err))
				}
			})
			fetches.EachRecord(func(record *kgo.Record) { member.Read(record.Partition, record.Offset) })
		}
	}()
	return func() error {
		stop()
		<-stopped
		defer client.Close()
		return client.LeaveGroupContext(ctx)
	}, nil
}

func (s *scenario) lineReader() (*kgo.Client, error) {
	return s.client(
		kgo.ConsumerGroup(s.resume),
		kgo.ConsumeTopics(s.line),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(soon),
		kgo.DisableAutoCommit(),
	)
}

func (s *scenario) commitAndResume(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.line, 1, nil); err != nil {
		return nil, err
	}
	producer, err := s.producer("none")
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var lines []*kgo.Record
	for i := range 20 {
		lines = append(lines, &kgo.Record{Topic: s.line, Value: fmt.Appendf(nil, "line-%d", i)})
	}
	if err := producer.ProduceSync(ctx, lines...).FirstErr(); err != nil {
		return nil, err
	}

	committed, err := s.commitTen(ctx)
	if err != nil {
		return nil, err
	}

	again, err := s.lineReader()
	if err != nil {
		return nil, err
	}
	defer again.Close()
	fetches := again.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return nil, err
	}
	return play.Saw{"committed": committed, "resumed": string(fetches.Records()[0].Value)}, nil
}

func (s *scenario) commitTen(ctx context.Context) (int64, error) {
	client, err := s.lineReader()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	var read []*kgo.Record
	for len(read) < 10 {
		fetches := client.PollRecords(ctx, 10-len(read))
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		read = append(read, fetches.Records()...)
	}
	if err := client.CommitRecords(ctx, read...); err != nil {
		return 0, err
	}
	return client.CommittedOffsets()[s.line][0].Offset, nil
}

func (s *scenario) isListed(ctx context.Context, group string) (bool, error) {
	listed, err := s.admin.ListGroups(ctx)
	_, found := listed[group]
	return found, err
}

func (s *scenario) listGroups(ctx context.Context) (play.Saw, error) {
	listed, err := s.isListed(ctx, s.resume)
	return play.Saw{"listed": listed}, err
}

// described waits for the state, and is the group in it.
func (s *scenario) described(ctx context.Context, state string) (kadm.DescribedGroup, error) {
	var group kadm.DescribedGroup
	err := play.Until(ctx, func() (bool, error) {
		groups, err := s.admin.DescribeGroups(ctx, s.resume)
		if err != nil {
			return false, err
		}
		group = groups[s.resume]
		return group.State == state, group.Err
	})
	if err != nil {
		return group, fmt.Errorf("waiting for %s, it is %q: %w", state, group.State, err)
	}
	return group, nil
}

func (s *scenario) describeGroup(ctx context.Context) (play.Saw, error) {
	client, err := s.lineReader()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	busy, err := s.described(ctx, "Stable")
	if err != nil {
		return nil, err
	}
	if err := client.LeaveGroupContext(ctx); err != nil {
		return nil, err
	}
	empty, err := s.described(ctx, "Empty")
	return play.Saw{"member": busy.State, "empty": empty.State, "protocol_type": busy.ProtocolType}, err
}

func (s *scenario) listGroupOffsets(ctx context.Context) (play.Saw, error) {
	offsets, err := s.admin.FetchOffsets(ctx, s.resume)
	if err != nil {
		return nil, err
	}
	committed, found := offsets.Lookup(s.line, 0)
	if !found {
		return nil, fmt.Errorf("no offset of %s 0", s.line)
	}
	return play.Saw{"offset": committed.At}, committed.Err
}

func (s *scenario) deleteBusyGroup(ctx context.Context) (play.Saw, error) {
	client, err := s.lineReader()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err := s.described(ctx, "Stable"); err != nil {
		return nil, err
	}
	_, err = s.admin.DeleteGroup(ctx, s.resume)
	if left := client.LeaveGroupContext(ctx); left != nil {
		return nil, left
	}
	return refused(err, "NON_EMPTY_GROUP")
}

func (s *scenario) deleteGroup(ctx context.Context) (play.Saw, error) {
	if _, err := s.described(ctx, "Empty"); err != nil {
		return nil, err
	}
	if _, err := s.admin.DeleteGroup(ctx, s.resume); err != nil {
		return nil, err
	}
	return s.listGroups(ctx)
}

func (s *scenario) deleteMissingGroup(ctx context.Context) (play.Saw, error) {
	_, err := s.admin.DeleteGroup(ctx, s.nobody)
	return refused(err, "GROUP_ID_NOT_FOUND")
}
