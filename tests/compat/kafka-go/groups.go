package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/segmentio/kafka-go"

	"forebay/tests/compat/play"
)

func (s *scenario) groupOfTwo(ctx context.Context) (play.Saw, error) {
	return play.GroupOfTwo(ctx, s.join)
}

// join uses a ConsumerGroup: a Reader does not tell which partitions it has been assigned.
func (s *scenario) join(ctx context.Context, member *play.Member) (func() error, error) {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                s.pair,
		Brokers:           []string{s.bootstrap},
		Topics:            []string{s.records},
		HeartbeatInterval: soon,
		JoinGroupBackoff:  soon,
		StartOffset:       kafka.FirstOffset,
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			generation, err := group.Next(ctx)
			if errors.Is(err, kafka.ErrGroupClosed) || ctx.Err() != nil {
				return
			}
			if err != nil {
				// The group tries again by itself, after its backoff.
				fmt.Fprintln(os.Stderr, "next generation:", err)
				continue
			}
			assigned := generation.Assignments[s.records]
			member.Holds(len(assigned))
			generation.Start(func(ctx context.Context) {
				<-ctx.Done()
				member.Holds(0)
			})
			for _, partition := range assigned {
				generation.Start(func(ctx context.Context) {
					if err := s.readOn(ctx, generation, partition, member); err != nil {
						member.Failed(fmt.Errorf("partition %d: %w", partition.ID, err))
					}
				})
			}
		}
	}()
	return group.Close, nil
}

// readOn reads and commits until the generation ends.
func (s *scenario) readOn(ctx context.Context, generation *kafka.Generation, partition kafka.PartitionAssignment, member *play.Member) error {
	reader := s.reader(s.records, partition.ID)
	defer reader.Close()
	if err := reader.SetOffset(partition.Offset); err != nil {
		return err
	}
	for {
		message, err := reader.ReadMessage(ctx)
		if errors.Is(err, kafka.ErrGenerationEnded) {
			return nil
		}
		if err != nil {
			return err
		}
		member.Read(int32(message.Partition), message.Offset)
		next := map[string]map[int]int64{s.records: {partition.ID: message.Offset + 1}}
		if err := generation.CommitOffsets(next); err != nil && ctx.Err() == nil {
			return fmt.Errorf("commit: %w", err)
		}
	}
}

func (s *scenario) lineReader() *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers:           []string{s.bootstrap},
		GroupID:           s.resume,
		Topic:             s.line,
		MaxWait:           soon,
		HeartbeatInterval: soon,
		JoinGroupBackoff:  soon,
		StartOffset:       kafka.FirstOffset,
	})
}

func (s *scenario) commitAndResume(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.line, 1); err != nil {
		return nil, err
	}
	var lines []kafka.Message
	for i := range 20 {
		lines = append(lines, kafka.Message{Value: fmt.Appendf(nil, "line-%d", i)})
	}
	if err := s.write(ctx, s.line, codecs["none"], lines); err != nil {
		return nil, err
	}

	committed, err := s.commitTen(ctx)
	if err != nil {
		return nil, err
	}

	again := s.lineReader()
	defer again.Close()
	message, err := again.FetchMessage(ctx)
	return play.Saw{"committed": committed, "resumed": string(message.Value)}, err
}

func (s *scenario) commitTen(ctx context.Context) (int64, error) {
	reader := s.lineReader()
	defer reader.Close()
	var last kafka.Message
	for range 10 {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return 0, err
		}
		last = message
	}
	return last.Offset + 1, reader.CommitMessages(ctx, last)
}

// listed is the group as it is listed, or nil.
func (s *scenario) listed(ctx context.Context, group string) (*kafka.ListGroupsResponseGroup, error) {
	listed, err := s.client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	for _, each := range listed.Groups {
		if each.GroupID == group {
			return &each, listed.Error
		}
	}
	return nil, listed.Error
}

func (s *scenario) listGroups(ctx context.Context) (play.Saw, error) {
	group, err := s.listed(ctx, s.resume)
	return play.Saw{"listed": group != nil}, err
}

// untilState waits for the group to be in the state.
func (s *scenario) untilState(ctx context.Context, state string) error {
	found := ""
	err := play.Until(ctx, func() (bool, error) {
		described, err := s.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{s.resume}})
		if err != nil {
			return false, err
		}
		found = described.Groups[0].GroupState
		return found == state, described.Groups[0].Error
	})
	if err != nil {
		return fmt.Errorf("waiting for %s, it is %q: %w", state, found, err)
	}
	return nil
}

// describeGroup takes the protocol type from the list of groups: kafka-go leaves it out of their descriptions.
func (s *scenario) describeGroup(ctx context.Context) (play.Saw, error) {
	reader := s.lineReader()
	busy := s.untilState(ctx, "Stable")
	group, err := s.listed(ctx, s.resume)
	closed := reader.Close()
	if err := errors.Join(busy, err, closed); err != nil {
		return nil, err
	}
	if group == nil {
		return nil, fmt.Errorf("%s is not listed", s.resume)
	}
	return play.Saw{"member": "Stable", "empty": "Empty", "protocol_type": group.ProtocolType}, s.untilState(ctx, "Empty")
}

func (s *scenario) listGroupOffsets(ctx context.Context) (play.Saw, error) {
	fetched, err := s.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: s.resume, Topics: map[string][]int{s.line: {0}}})
	if err != nil {
		return nil, err
	}
	if fetched.Error != nil || len(fetched.Topics[s.line]) != 1 {
		return nil, fmt.Errorf("offsets %v: %w", fetched.Topics, fetched.Error)
	}
	partition := fetched.Topics[s.line][0]
	return play.Saw{"offset": partition.CommittedOffset}, partition.Error
}

func (s *scenario) dropGroup(ctx context.Context, group string) error {
	deleted, err := s.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return err
	}
	return deleted.Errors[group]
}

func (s *scenario) deleteBusyGroup(ctx context.Context) (play.Saw, error) {
	reader := s.lineReader()
	busy := s.untilState(ctx, "Stable")
	err := s.dropGroup(ctx, s.resume)
	if failed := errors.Join(busy, reader.Close()); failed != nil {
		return nil, failed
	}
	return refused(err, "NON_EMPTY_GROUP")
}

func (s *scenario) deleteGroup(ctx context.Context) (play.Saw, error) {
	if err := s.untilState(ctx, "Empty"); err != nil {
		return nil, err
	}
	if err := s.dropGroup(ctx, s.resume); err != nil {
		return nil, err
	}
	return s.listGroups(ctx)
}

func (s *scenario) deleteMissingGroup(ctx context.Context) (play.Saw, error) {
	return refused(s.dropGroup(ctx, s.nobody), "GROUP_ID_NOT_FOUND")
}
