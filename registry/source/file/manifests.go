package file

import (
	"github.com/sightlinedev/sightline/registry/manifest"
	"github.com/sightlinedev/sightline/registry/reconcile"
)

// Manifests is the ParseFunc for sightline.dev/v1 manifests. A file counts as a
// whole: one mistake in it, and the list gets none of its objects.
func Manifests(name string, data []byte, into *reconcile.List) error {
	objects, err := manifest.Parse(name, data)
	if err != nil {
		return err
	}
	for _, o := range objects {
		switch {
		case o.Service != nil:
			into.Services = append(into.Services, o.Service)
		case o.Instance != nil:
			into.Instances = append(into.Instances, o.Instance)
		case o.Contract != nil:
			into.Contracts = append(into.Contracts, o.Contract)
		case o.Profile != nil:
			into.Profiles = append(into.Profiles, o.Profile)
		}
	}
	return nil
}
