// Package redisstream writes streams for services that read them with watermill-redisstream, by that
// library's own publisher. What such services write needs no package of its own: plugins/redis reads
// their entries without blocking and many at a time, while the library's subscriber sends blocking
// reads, which some managed servers refuse.
package redisstream
