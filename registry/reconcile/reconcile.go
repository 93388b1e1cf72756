package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Answer is which of the three answers an authority gave.
type Answer uint8

// The answers.
const (
	NoAnswer   Answer = iota // nothing was heard: keep what is held
	Listed                   // a complete list; an empty one withdraws
	Unreadable               // something was heard and not understood: an error, nothing changes
)

var answerNames = [...]string{"no answer", "listed", "unreadable"}

// String is the answer's name in logs.
func (a Answer) String() string { return answerNames[a] }

// List is what an authority says exists, all of it at once.
type List struct {
	Answer Answer
	Detail string // why there is no answer, or why it is unreadable
	// Incomplete says which part of the authority has not been read since the
	// start. What is listed is put, and nothing is removed: what the unread
	// part gave earlier cannot be told from what is gone.
	Incomplete string

	Services  []*registry.Service
	Instances []*registry.Instance // named by service and label, or by what they are
	Contracts []*registry.Contract
	Profiles  []*registry.Profile
}

// Limits are the numbers of the brake.
type Limits struct {
	Percent int           // a pass may remove up to this share of the source's rows,
	Least   int           // or fewer than this many whatever their share
	Again   time.Duration // how much later the second list has to agree
}

// DefaultLimits are those of HEALTH.md §6: more than 30 %, at least 3, 10 s.
func DefaultLimits() Limits { return Limits{Percent: 30, Least: 3, Again: 10 * time.Second} }

// Rule is the rule that decided a pass.
type Rule string

// The rules.
const (
	RuleInStep       Rule = "in-step"       // the list and what is held are alike
	RuleApply        Rule = "apply"         // the difference is small enough
	RuleAgreed       Rule = "agreed"        // a second, later list agrees with a mass removal
	RuleConfirmed    Rule = "confirmed"     // an operator confirmed a mass removal
	RuleNoAnswer     Rule = "no-answer"     // nothing is known, all is kept
	RuleUnreadable   Rule = "unreadable"    // an error, all is kept
	RuleIncomplete   Rule = "incomplete"    // nothing is removed until all was read once
	RuleBrakeShare   Rule = "brake-share"   // too large a share of the source's list
	RuleBrakeService Rule = "brake-service" // all instances of a service
)

// Diff is the difference between a list and what is held, by row.
type Diff struct {
	Missing []registry.RowKey // listed and not held: to be put (without uid, by name)
	Changed []registry.RowKey // held and listed otherwise: to be put
	Extra   []registry.RowKey // held and no longer listed: to be removed
}

// Empty reports whether list and registry are alike.
func (d Diff) Empty() bool { return len(d.Missing)+len(d.Changed)+len(d.Extra) == 0 }

// Decision is what to do after one pass, with the rule and the numbers it saw.
type Decision struct {
	Source string
	Rule   Rule
	Detail string // the facts, for a person
	Diff   Diff
	// Apply are the changes to plan; each stands alone, so that one that is
	// refused holds up no other.
	Apply []registry.Mutation
	Held  []registry.RowKey // extra rows that stay for now
	Until time.Time         // when a list that still lacks them is believed; zero when nothing waits for that
	// Instances that the pass would remove, of how many the source holds, those
	// of services that go too not counted; and the same for service rows.
	Removing, Of                 int
	RemovingServices, OfServices int
	Emptied                      []registry.Name // services that would lose every instance and stay
	Duplicates                   []Duplicate
}

// Duplicate is a row that a list holds twice; the first one counts.
type Duplicate struct {
	Kind registry.RowKind
	Name string
}

// Settled reports whether the same list need not be looked at again: nothing
// of it waits.
func (d *Decision) Settled() bool { return len(d.Held) == 0 && len(d.Apply) == 0 }

// Source is what is remembered of one authority between passes.
type Source struct {
	name      string
	limits    Limits
	waiting   map[registry.RowKey]time.Time // held extra rows → when they were first not listed
	confirmed map[registry.RowKey]bool
}

// NewSource returns the memory of the source of that name. Nothing of it is
// stored: after a start a mass removal has to be seen twice again.
func NewSource(name string, limits Limits) *Source {
	return &Source{name: name, limits: limits,
		waiting: make(map[registry.RowKey]time.Time), confirmed: make(map[registry.RowKey]bool)}
}

// Confirm lets what the brake holds now go at the next complete list that
// still lacks it, and returns how many rows that are. Rows that go missing
// later are not covered.
func (s *Source) Confirm() int {
	for k := range s.waiting {
		s.confirmed[k] = true
	}
	return len(s.waiting)
}

// Pass compares a list with the rows that the registry holds for the source
// (registry.Index.Owned). size tells how many instances a service has over all
// sources.
func (s *Source) Pass(now time.Time, list *List, held []registry.Row, size func(registry.Name) int) Decision {
	d := Decision{Source: s.name}
	switch list.Answer {
	case NoAnswer:
		d.Rule, d.Detail = RuleNoAnswer, "no answer: "+list.Detail+"; everything held is kept"
		return d
	case Unreadable:
		d.Rule, d.Detail = RuleUnreadable, "unreadable: "+list.Detail+"; everything held is kept"
		return d
	}
	c := compare(s.name, list, held)
	d.Diff, d.Duplicates, d.Apply = c.diff, c.duplicates, c.puts
	s.forget(c.diff.Extra)
	s.brake(now, &d, list, c, size)
	return d
}

// forget drops the memory of rows that are listed again or gone.
func (s *Source) forget(extra []registry.RowKey) {
	still := make(map[registry.RowKey]bool, len(extra))
	for _, k := range extra {
		still[k] = true
	}
	gone := func(k registry.RowKey) bool { return !still[k] }
	maps.DeleteFunc(s.waiting, func(k registry.RowKey, _ time.Time) bool { return gone(k) })
	maps.DeleteFunc(s.confirmed, func(k registry.RowKey, _ bool) bool { return gone(k) })
}

// brake decides which of the extra rows go now.
func (s *Source) brake(now time.Time, d *Decision, list *List, c *comparison, size func(registry.Name) int) {
	d.count(c, size)
	switch rule := d.tripped(s.limits); {
	case d.Diff.Empty():
		d.Rule, d.Detail = RuleInStep, fmt.Sprintf("list and registry are alike: %d instances", d.Of)
	case list.Incomplete != "" && len(d.Diff.Extra) > 0:
		d.Rule, d.Held = RuleIncomplete, d.Diff.Extra
		d.Detail = fmt.Sprintf("%s has not been read since the start; %d rows that are not listed are kept", list.Incomplete, len(d.Held))
	case rule == RuleApply:
		d.Rule = RuleApply
		d.Detail = fmt.Sprintf("%d to add, %d changed, %d of %d instances to remove", len(d.Diff.Missing), len(d.Diff.Changed), d.Removing, d.Of)
		s.release(d, c, d.Diff.Extra)
	default:
		s.second(now, d, c, rule)
	}
}

// count fills in the numbers that the brake judges.
func (d *Decision) count(c *comparison, size func(registry.Name) int) {
	d.Of, d.OfServices = c.instances, c.services
	leaving := make(map[registry.Name]bool)
	for _, k := range d.Diff.Extra {
		if k.Kind == registry.ServiceRow {
			leaving[k.Name] = true
			d.RemovingServices++
		}
	}
	lost := make(map[registry.Name]int)
	for _, k := range d.Diff.Extra {
		switch {
		case k.Kind != registry.InstanceRow:
		case leaving[k.Name]:
			d.Of--
		default:
			d.Removing++
			lost[k.Name]++
		}
	}
	for n, count := range lost {
		if count >= size(n) {
			d.Emptied = append(d.Emptied, n)
		}
	}
	slices.SortFunc(d.Emptied, registry.Name.Compare)
}

// tripped returns the brake's rule that holds the removals, or RuleApply.
func (d *Decision) tripped(l Limits) Rule {
	tooMany := func(removing, of int) bool { return removing >= l.Least && 100*removing > l.Percent*of }
	switch {
	case tooMany(d.Removing, d.Of), tooMany(d.RemovingServices, d.OfServices):
		return RuleBrakeShare
	case len(d.Emptied) > 0:
		return RuleBrakeService
	}
	return RuleApply
}

// second lets go what a list at least limits.Again ago lacked too, or an
// operator confirmed, and holds the rest.
func (s *Source) second(now time.Time, d *Decision, c *comparison, rule Rule) {
	var free []registry.RowKey
	confirmed := 0
	for _, k := range d.Diff.Extra {
		first, seen := s.waiting[k]
		if !seen {
			first = now
			s.waiting[k] = now
		}
		switch ready := first.Add(s.limits.Again); {
		case s.confirmed[k]:
			confirmed++
			free = append(free, k)
		case !ready.After(now):
			free = append(free, k)
		default:
			d.Held = append(d.Held, k)
			if d.Until.IsZero() || ready.Before(d.Until) {
				d.Until = ready
			}
		}
	}
	numbers := fmt.Sprintf("%d of %d instances and %d of %d services are no longer listed", d.Removing, d.Of, d.RemovingServices, d.OfServices)
	if len(d.Emptied) > 0 {
		numbers += fmt.Sprintf(", all of %s among them", names(d.Emptied))
	}
	switch {
	case len(d.Held) > 0:
		d.Rule = rule
		d.Detail = fmt.Sprintf("%s; more than %d%% (at least %d) or all of a service waits for a second complete list %s later, or an operator: %d rows held, %d let go",
			numbers, s.limits.Percent, s.limits.Least, s.limits.Again, len(d.Held), len(free))
	case confirmed > 0:
		d.Rule, d.Detail = RuleConfirmed, numbers+"; an operator confirmed"
	default:
		d.Rule, d.Detail = RuleAgreed, numbers+"; a second complete list agrees"
	}
	s.release(d, c, free)
}

// release adds the removals of the rows that may go. An instance whose service
// is deleted goes with it.
func (s *Source) release(d *Decision, c *comparison, free []registry.RowKey) {
	leaving := make(map[registry.Name]bool)
	for _, k := range free {
		if k.Kind == registry.ServiceRow {
			leaving[k.Name] = true
		}
	}
	for _, k := range free {
		delete(s.waiting, k)
		delete(s.confirmed, k)
		switch k.Kind {
		case registry.ServiceRow:
			d.Apply = append(d.Apply, registry.DeleteService{Name: k.Name, By: s.name})
		case registry.InstanceRow:
			if !leaving[k.Name] {
				d.Apply = append(d.Apply, registry.RemoveInstance{UID: k.UID, Service: k.Name, Label: c.labels[k.UID],
					By: s.name, Removal: registry.RemovedByList})
			}
		case registry.ContractRow:
			d.Apply = append(d.Apply, registry.DeleteContract{Name: k.Name, By: s.name})
		case registry.ProfileRow:
			d.Apply = append(d.Apply, registry.DeleteProfile{Name: k.Name, By: s.name})
		}
	}
}

func names(ns []registry.Name) string {
	const shown = 3
	var b strings.Builder
	for i, n := range ns {
		if i == shown {
			fmt.Fprintf(&b, " and %d more", len(ns)-shown)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(n.String())
	}
	return b.String()
}
