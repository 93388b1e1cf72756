package shard

import (
	"context"
	"errors"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// Config is what a Set is built from. Functions are called on the shards' own
// goroutines, several at once, and must return soon; those that may be nil say
// so.
type Config struct {
	// Shards is the number of goroutines; 0 is 1.
	Shards int
	// Samples is how many ordinary samples wait in one shard's inbox before
	// further ones are dropped (limits.Reports.Inbox); 0 is 65,536.
	Samples int
	// Tick is how often evidence is judged and due times are looked at; 0 is
	// 250 ms (DESIGN.md §1).
	Tick time.Duration
	// CheckpointEvery is how often what changed is saved; 0 is 10 s.
	CheckpointEvery time.Duration

	// Publish is views.Publisher.Publish.
	Publish func(now time.Time, c views.Candidate) views.Result
	// Complete says that every stored service has been offered to Publish. It
	// is called once.
	Complete func()
	// Feeds are told of each publication, in their order here. May be empty.
	Feeds []func(views.Publication)
	// SaveCheckpoint keeps a service's memory; nil bytes delete it. It must not
	// wait for a disk. Nil: nothing is kept.
	SaveCheckpoint func(n registry.Name, memory []byte)
	// SaveMinute keeps what was heard of a service within about a minute
	// (health.ReadMinute). It must not wait for a disk. Nil: nothing is kept.
	SaveMinute func(n registry.Name, start time.Time, record []byte)
	// Minutes reads what SaveMinute kept of a service, oldest first, until visit
	// returns false; a record is valid during the call. It may wait: it is called
	// by whoever asks. Nil: nothing is kept.
	Minutes func(ctx context.Context, n registry.Name, from, until time.Time, visit func(start time.Time, record []byte) bool) (damaged int, err error)
	// AgedOut asks the registry to remove instances whose lease lapsed ten
	// minutes ago (registry.LapsedOut). It may wait: it has a goroutine of its
	// own. What it does not remove is named again a minute later. Nil: nobody
	// is removed.
	AgedOut func(n registry.Name, uids []registry.UID)

	Events Events
}

// Events report what happens; each may be nil.
type Events struct {
	// Transitions are a service's entries for the log. Version is that of the
	// publication that carried them; zero when they changed no view, or when
	// the view waits for its lane.
	Transitions func(n registry.Name, version views.Version, t []health.Transition)
	// HealthIncident and ViewIncident are for a person, once per episode.
	HealthIncident func(n registry.Name, i health.Incident)
	ViewIncident   func(i views.Incident)
	// ObserverIncident is for a person too: it is about the region's observers.
	ObserverIncident func(i health.ObserverIncident)
	// Changed is told of the rows that a service's evaluation has taken, all of
	// them at a start; Contract of what governs a service's instances in a zone,
	// "" for every zone; Probing of what the evaluation wants of the probers.
	// They are called in order for each service.
	Changed  func(c registry.Change)
	Contract func(n registry.Name, c registry.Contract, zone string)
	Probing  func(n registry.Name, p []health.Probing)
	// Rollout is told of each step of a changed contract; of one that was refused
	// a person should hear.
	Rollout func(n registry.Name, r Rollout)
	// Stance is told of what the observers make of themselves, when it changes.
	Stance func(s *health.Stance)
	// Observed counts samples that were taken in, Dropped those that a full
	// inbox did not take, Refused those that the evaluator could not use; counts
	// of callers are told apart when they are not taken in.
	Observed        func(n int)
	Dropped         func(n int)
	Refused         func(n int)
	OutcomesDropped func(n int)
	OutcomesRefused func(n int)
	// Gap says that a shard did not run for late: evidence of that time is
	// missing, and every lease got a full term.
	Gap func(shard int, late time.Duration)
	// LostMemory says that a service's checkpoint could not be read; its
	// instances are in rotation.
	LostMemory func(n registry.Name, err error)
	// Stale says that the Publisher refused a candidate for good.
	Stale func(n registry.Name, reason string)
	// Rebuilt says how long it took from the start until every view was built.
	Rebuilt func(services, instances int, took time.Duration)
}

// ErrStopped is returned to whoever asks a Set that has stopped, or has not
// been started before the asker's patience ended.
var ErrStopped = errors.New("the evaluation has stopped")

func (c Config) withDefaults() Config {
	if c.Shards <= 0 {
		c.Shards = 1
	}
	if c.Samples <= 0 {
		c.Samples = 65_536
	}
	if c.Tick <= 0 {
		c.Tick = 250 * time.Millisecond
	}
	if c.CheckpointEvery <= 0 {
		c.CheckpointEvery = 10 * time.Second
	}
	return c
}
