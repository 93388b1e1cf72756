// Package registry is the black-box suite of what goes in: names that the API
// takes or refuses, folders of manifests, a disk that is full, ports that are
// taken; and of what comes out of it: the four surfaces, which agree.
package registry
