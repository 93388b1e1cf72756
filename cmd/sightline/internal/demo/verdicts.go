package demo

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// Budgets of the scenarios about verdicts (HEALTH.md).
const (
	primaryWithin = 2 * time.Minute  // callers are primary after a minute of traffic
	greyWithin    = 10 * time.Second // from the fault to the verdict
	trialWithin   = 30 * time.Second // 15 s after the withdrawal, and the news
	holdOfReturn  = 15 * time.Second
)

// grpcProbes asks probers for the health service that the instances serve.
func grpcProbes(c *registryv1.Contract) {
	c.Probe = &registryv1.Probe{Kind: registryv1.ProbeKind_PROBE_KIND_GRPC}
}

// noRamp lets everybody start at full weight, so that the scenario can begin.
func noRamp(c *registryv1.Contract) { c.Ramp = durationpb.New(0) }

// look resolves the first service and finds an instance in it.
func (d *director) look(ctx context.Context, at place) (*viewv1.Member, *viewv1.View, error) {
	v, err := d.resolve(ctx, d.cast.services[at.service].name)
	return member(v, d.label(at)), v, err
}

// explain asks why an instance stands as it does.
func (d *director) explain(ctx context.Context, at place) (*adminv1.InstanceExplanation, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := adminv1.NewAdminServiceClient(d.api).Explain(ctx, &adminv1.ExplainRequest{
		Namespace: namespace, Name: d.cast.services[at.service].name, Instance: d.label(at)})
	if err != nil || len(r.GetService().GetInstances()) == 0 {
		return nil, err
	}
	return r.GetService().GetInstances()[0], nil
}

// until waits for the first service to be as it should.
func (d *director) until(ctx context.Context, within time.Duration, what string, fits func(*viewv1.View) bool) (*viewv1.View, error) {
	var v *viewv1.View
	err := d.poll(ctx, within, what, func() (bool, error) {
		var err error
		v, err = d.resolve(ctx, d.cast.services[0].name)
		return err == nil && fits(v), nil
	})
	return v, err
}

func listedIn(v *viewv1.View) (n int) {
	for _, m := range v.GetMembers() {
		if m.GetListed() {
			n++
		}
	}
	return n
}

func greyCast() cast {
	c := one("checkout", 4, "ab", classProbe, classSelf, classCallers).probed("a", "b")
	c.services[0].contract = grpcProbes
	return c
}

// grey makes one instance fail calls that no probe makes.
func (d *director) grey(ctx context.Context) error {
	at := place{0, d.rng.IntN(4)}
	victim, address, service := d.label(at), d.address(at), d.cast.services[0].name
	d.say("warm", "callers report their outcomes over LRS; they decide once they have spoken for a minute")
	if err := d.poll(ctx, primaryWithin, "callers to be the primary class of "+victim, func() (bool, error) {
		x, err := d.explain(ctx, at)
		return err == nil && primaryOf(x) == classCallers && x.GetWeight() == x.GetBaseWeight(), nil
	}); err != nil {
		return err
	}
	if err := d.instances[victim].tell("fail 40"); err != nil {
		return err
	}
	began := time.Now()
	d.say("fault", "%s fails 40 %% of its calls; its probes and its own word are good", victim)
	v, err := d.until(ctx, 2*greyWithin, "the verdict on "+victim, func(v *viewv1.View) bool {
		m := member(v, victim)
		return m != nil && !m.GetListed()
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	took := time.Since(began)
	m := member(v, victim)
	d.say("health", "%s/%s/%s  %s by %s: %s", namespace, service, victim, stateOf(m), m.GetEvidence().GetRule(), m.GetEvidence().GetDetail())
	d.check(err == nil && took <= greyWithin && m.GetEvidence().GetRule() == "R4", "withdrawn on its callers' word %s after the fault (budget %s)", round(took), greyWithin)
	err = d.poll(ctx, withdrawnAfterVerdict, victim+" to leave every caller", func() (bool, error) {
		return len(d.ledger.holders(service, address)) == 0, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "out of all %d callers' sets %s", len(d.names), stillHolding(d.ledger.holders(service, address)))
	if err := d.instances[victim].tell("fail 0"); err != nil {
		return err
	}
	d.say("back", "%s is repaired; nobody calls it, so a trial at the first step of a ramp has to show it", victim)
	v, err = d.until(ctx, trialWithin, victim+" to be tried", func(v *viewv1.View) bool { return member(v, victim).GetListed() })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m = member(v, victim)
	d.check(err == nil && m.GetWeight() < m.GetBaseWeight(), "tried at weight %d of %d", m.GetWeight(), m.GetBaseWeight())
	v, err = d.until(ctx, time.Minute, victim+" to climb", func(v *viewv1.View) bool {
		m := member(v, victim)
		return m != nil && (!m.GetListed() || m.GetWeight() >= 40)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m = member(v, victim)
	d.check(err == nil && m.GetListed(), "no relapse: its weight is %d and climbs", m.GetWeight())
	return nil
}

func primaryOf(x *adminv1.InstanceExplanation) registryv1.EvidenceClass {
	for _, e := range x.GetEvidence() {
		if e.GetPrimary() {
			return e.GetEvidenceClass()
		}
	}
	return registryv1.EvidenceClass_EVIDENCE_CLASS_UNSPECIFIED
}

func baddeployCast() cast {
	c := one("cart", 4, "ab", classProbe, classSelf).probed("a", "b")
	c.services[0].contract = grpcProbes
	return c
}

// baddeploy starts new instances that never become good.
func (d *director) baddeploy(ctx context.Context) error {
	const news = 5
	for k := range news {
		if err := d.startInstance(place{0, 4 + k}, "bad"); err != nil {
			return err
		}
	}
	d.say("fault", "a deployment starts %d new instances that say NOT_SERVING and fail their probes", news)
	if err := d.poll(ctx, guardWithin, "the new instances to be registered", func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		r, err := registryv1.NewRegistryServiceClient(d.api).ListInstances(ctx, &registryv1.ListInstancesRequest{Namespace: namespace, Service: "cart"})
		return err == nil && len(r.GetInstances()) == 4+news, nil
	}); err != nil {
		return err
	}
	_, failedBefore, _ := d.ledger.totals()
	worst, tripped := 0, false
	for end := time.Now().Add(35 * time.Second); time.Now().Before(end) && ctx.Err() == nil; wait(ctx, sampleEvery) {
		v, err := d.resolve(ctx, "cart")
		if err != nil {
			return err
		}
		tripped = tripped || v.GetGuard().GetTripped()
		entered := 0
		for k := range news {
			if m := member(v, d.label(place{0, 4 + k})); m != nil && m.GetListed() {
				entered++
			}
		}
		worst = max(worst, entered)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, failed, _ := d.ledger.totals()
	d.check(worst == 0, "none of the %d entered within 35 s %s", news, countIf(worst, "entered"))
	d.check(!tripped, "the guard did not trip: who was never a member does not weigh")
	d.check(failed == failedBefore && len(d.disagreements()) == 0, "every caller still holds the 4 old ones, and %d calls failed", failed-failedBefore)
	if err := d.instances[d.label(place{0, 4})].tell("serving"); err != nil {
		return err
	}
	if err := d.instances[d.label(place{0, 4})].tell("healthy"); err != nil {
		return err
	}
	_, err := d.until(ctx, 15*time.Second, "a repaired one to enter", func(v *viewv1.View) bool {
		return member(v, d.label(place{0, 4})).GetListed()
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "one is repaired, and enters at its first good evidence")
	return nil
}

func countIf(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("(%d %s)", n, what)
}

func zonedeadCast() cast {
	c := one("catalog", 12, "abc", classProbe, classSelf).probed("a", "b", "c")
	c.services[0].contract = func(c *registryv1.Contract) {
		grpcProbes(c)
		noRamp(c)
	}
	return c
}

// zonedead stops everything in one zone: what listens goes on listening, and
// nothing answers.
func (d *director) zonedead(ctx context.Context) error {
	var dead []place
	for _, p := range d.cast.seats() {
		if d.zone(p) == "a" {
			dead = append(dead, p)
		}
	}
	freeze := func(s syscall.Signal) {
		for _, p := range dead {
			_ = d.instances[d.label(p)].cmd.Process.Signal(s)
		}
		_ = d.probers[0].cmd.Process.Signal(s)
	}
	freeze(syscall.SIGSTOP)
	defer freeze(syscall.SIGCONT)
	began := time.Now()
	d.say("fault", "zone a stops: %d of 12 instances and its prober hang", len(dead))
	labels := make(map[string]bool)
	for _, p := range dead {
		labels[d.label(p)] = true
	}
	share := func(v *viewv1.View) float64 {
		var part, all float64
		for _, m := range v.GetMembers() {
			if m.GetListed() {
				all += float64(m.GetWeight())
				if labels[m.GetLabel()] {
					part += float64(m.GetWeight())
				}
			}
		}
		return part / max(all, 1)
	}
	v, err := d.until(ctx, 30*time.Second, "zone a to lose its traffic", func(v *viewv1.View) bool { return share(v) <= 0.1 })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, m := range v.GetMembers() {
		if labels[m.GetLabel()] {
			d.say("health", "%s  %s by %s, weight %d: %s", m.GetLabel(), stateOf(m), m.GetEvidence().GetRule(), m.GetWeight(), m.GetEvidence().GetDetail())
		}
	}
	d.check(err == nil, "zone a carries %.0f %% of the traffic %s after it stopped (it had 33 %%)", 100*share(v), round(time.Since(began)))
	healthy := 0
	for _, m := range v.GetMembers() {
		if !labels[m.GetLabel()] && m.GetListed() && m.GetWeight() == m.GetBaseWeight() {
			healthy++
		}
	}
	d.check(healthy == 8, "the %d instances of the other zones stay at full weight", healthy)
	d.samples(ctx)
	_, before, _ := d.ledger.totals()
	d.pause(ctx, 5*time.Second)
	d.samples(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ok, failed, _ := d.ledger.totals()
	d.say("traffic", "%d calls so far, %d failed in the 5 s after the withdrawal", ok, failed-before)
	freeze(syscall.SIGCONT)
	d.say("back", "zone a goes on")
	_, err = d.until(ctx, time.Minute, "zone a to serve again", func(v *viewv1.View) bool {
		serving := 0
		for _, m := range v.GetMembers() {
			if m.GetListed() && m.GetState() == viewv1.State_STATE_ELIGIBLE {
				serving++
			}
		}
		return serving == 12
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "all 12 are eligible again")
	return nil
}

func flapCast() cast { return one("cart", 4, "ab", classSelf) }

// flap lets an instance change its mind until it is quarantined.
func (d *director) flap(ctx context.Context) error {
	at := place{0, d.rng.IntN(4)}
	victim := d.label(at)
	d.say("fault", "%s says NOT_SERVING, SERVING, NOT_SERVING, ... as soon as it is believed", victim)
	for change := 1; change <= 5; change++ {
		word, listed := "not-serving", false
		if change%2 == 0 {
			word, listed = "serving", true
		}
		if err := d.instances[victim].tell(word); err != nil {
			return err
		}
		if _, err := d.until(ctx, holdOfReturn+10*time.Second, fmt.Sprintf("change %d of %s", change, victim), func(v *viewv1.View) bool {
			return member(v, victim).GetListed() == listed
		}); err != nil {
			return err
		}
		d.say("health", "change %d: listed %t", change, listed)
	}
	if err := d.instances[victim].tell("serving"); err != nil {
		return err
	}
	d.say("back", "%s says SERVING and means it", victim)
	for end := time.Now().Add(holdOfReturn + 10*time.Second); time.Now().Before(end) && ctx.Err() == nil; wait(ctx, sampleEvery) {
		if m, _, err := d.look(ctx, at); err == nil && m.GetListed() {
			d.check(false, "the fifth change within 10 minutes holds it out")
			return nil
		}
	}
	x, err := d.explain(ctx, at)
	if err != nil {
		return err
	}
	held := ""
	for _, damper := range x.GetDampers() {
		if damper.GetKind() == adminv1.DamperKind_DAMPER_KIND_QUARANTINE {
			held = damper.GetDetail()
		}
	}
	d.check(held != "", "quarantined at its fifth change within 10 minutes: %s", held)
	_, v, err := d.look(ctx, at)
	if err != nil {
		return err
	}
	d.check(listedIn(v) == 3 && !v.GetGuard().GetTripped(), "the other %d serve, the guard is not tripped", listedIn(v))
	ctxRelease, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := adminv1.NewAdminServiceClient(d.api).ReleaseQuarantine(ctxRelease, &adminv1.ReleaseQuarantineRequest{
		Namespace: namespace, Name: "cart", Instance: victim, Justification: "the demo's operator has seen it stay up",
	}); err != nil {
		return err
	}
	d.say("operator", "sightline quarantine release %s/cart/%s --justification ...", namespace, victim)
	_, err = d.until(ctx, 10*time.Second, victim+" to return", func(v *viewv1.View) bool { return member(v, victim).GetListed() })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "released, it is listed again, on a ramp")
	return nil
}

func blindCast() cast {
	c := one("catalog", 4, "ab", classProbe).probed("a", "b")
	c.services[0].contract = grpcProbes
	return c
}

// blind stops every prober of a service that nothing else speaks for.
func (d *director) blind(ctx context.Context) error {
	for _, p := range d.probers {
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	cont := func() {
		for _, p := range d.probers {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
		}
	}
	defer cont()
	_, failedBefore, _ := d.ledger.totals()
	d.say("fault", "all probers stop; nothing else speaks for %s", d.cast.services[0].name)
	unknown := func(v *viewv1.View) (n int) {
		for _, m := range v.GetMembers() {
			if m.GetState() == viewv1.State_STATE_UNKNOWN && m.GetListed() {
				n++
			}
		}
		return n
	}
	v, err := d.until(ctx, 30*time.Second, "silence", func(v *viewv1.View) bool { return unknown(v) == 4 })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil && listedIn(v) == 4, "%d of 4 are unknown, and %d are listed: silence is not failure", unknown(v), listedIn(v))
	counted, err := d.metric(ctx, `sightline_instances{state="unknown"}`)
	d.check(err == nil && counted == "4", "unknown instances are counted: sightline_instances{state=\"unknown\"} %s", counted)
	d.pause(ctx, 5*time.Second)
	d.samples(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, failed, _ := d.ledger.totals()
	d.check(failed == failedBefore && len(d.disagreements()) == 0, "every caller still holds all 4, and %d calls failed %s", failed-failedBefore, d.newFailures(failedBefore))
	cont()
	d.say("back", "the probers go on")
	_, err = d.until(ctx, 20*time.Second, "the probers' word", func(v *viewv1.View) bool { return unknown(v) == 0 })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "all 4 are eligible again")
	return nil
}

// metric reads one sample from the server's metrics page.
func (d *director) metric(ctx context.Context, sample string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.layout.addr(portHTTP)+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	for line := range lines(resp.Body) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("no sample %s", sample)
}

func dependencyCast() cast {
	c := one("checkout", 4, "ab", classSelf)
	c.services[0].contract = func(c *registryv1.Contract) {
		noRamp(c)
		c.Dependencies = []*registryv1.Dependency{{Name: database, Shared: true}}
	}
	return c
}

// dependency has every instance call the database that they share degraded.
func (d *director) dependency(ctx context.Context) error {
	all := func(command string) error {
		for _, p := range d.cast.seats() {
			if err := d.instances[d.label(p)].tell(command); err != nil {
				return err
			}
		}
		return nil
	}
	weights := func(v *viewv1.View, want uint32) bool {
		return len(v.GetMembers()) == 4 && !slices.ContainsFunc(v.GetMembers(), func(m *viewv1.Member) bool {
			return !m.GetListed() || m.GetWeight() != want
		})
	}
	_, failedBefore, _ := d.ledger.totals()
	if err := all("degraded"); err != nil {
		return err
	}
	d.say("fault", "all 4 call the database that they share degraded")
	v, err := d.until(ctx, 10*time.Second, "weights to follow", func(v *viewv1.View) bool { return weights(v, 50) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil && !v.GetGuard().GetTripped(), "all 4 are degraded at half weight, together: nothing moves, the guard is not tripped")
	d.pause(ctx, 3*time.Second)
	d.samples(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, failed, _ := d.ledger.totals()
	d.check(failed == failedBefore && len(d.disagreements()) == 0, "every caller still holds all 4, and %d calls failed", failed-failedBefore)
	if err := all("recovered"); err != nil {
		return err
	}
	_, err = d.until(ctx, 30*time.Second, "weights to follow", func(v *viewv1.View) bool { return weights(v, 100) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "the database recovers, and all 4 have their whole weight again")
	return nil
}

func rampCast() cast {
	c := one("checkout", 2, "ab", classSelf) // few, so that the first step is called often
	c.grpc, c.dns, c.every, c.workers = 1, false, 6*time.Millisecond, 4
	c.services[0].lease = 30 * time.Second
	c.services[0].contract = func(c *registryv1.Contract) { c.Ramp = durationpb.New(2 * time.Minute) }
	return c
}
