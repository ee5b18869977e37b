/* The part of libnuma that BytePS calls: memory stays where it is. */
#pragma once
struct bitmask;
#define numa_all_nodes_ptr ((struct bitmask *)0)
#define numa_no_nodes_ptr ((struct bitmask *)0)
static inline int numa_max_node(void) { return 0; }
static inline void numa_set_preferred(int node) { (void)node; }
static inline void numa_set_interleave_mask(struct bitmask *mask) { (void)mask; }
static inline void numa_bind(struct bitmask *mask) { (void)mask; }
static inline struct bitmask *numa_parse_nodestring(const char *text) { (void)text; return 0; }
