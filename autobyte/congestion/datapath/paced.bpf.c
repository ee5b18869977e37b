/* A TCP congestion control that paces a connection at the rate that user space sets; it decides nothing itself.
 *
 * Rates lie in storage that belongs to sockets. User space names a connection by its file descriptor, and the kernel
 * forgets the rate with the socket. Until a rate is set, the window stays as it is at the start.
 * The kernel sends lost segments again. A loss changes neither the pace nor, but for a time-out, the window: whoever
 * sets rates hears of it.
 *
 * The kernel's types are declared here with the fields that are used. The loader finds where these are in the running
 * kernel (BPF CO-RE), so no headers of a kernel are needed.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define KERNEL __attribute__((preserve_access_index))
#define MAP_TYPE_SK_STORAGE 24
#define NO_PREALLOC 1
#define STORAGE_CREATE 1
#define PACING_NEEDED 1

#define LEAST_WINDOW 10 /* segments, as Linux starts */
#define ROUND_TRIPS 2   /* whose bytes may be under way at the rate */
#define US_PER_S 1000000ULL

struct sock {
	unsigned long sk_pacing_rate;
	u32 sk_pacing_status;
} KERNEL;

struct tcp_sock {
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 srtt_us; /* eight times the smoothed round trip */
	u32 mss_cache;
} KERNEL;

struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	void (*cong_control)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[16];
} KERNEL;

struct {
	int (*type)[MAP_TYPE_SK_STORAGE];
	int (*map_flags)[NO_PREALLOC];
	int *key;
	u64 *value; /* bytes a second */
	int (*pinning)[1]; /* by name */
} autobyte_rates SEC(".maps");

static void *(*sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;

SEC("struct_ops/init")
int init(u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	sk->sk_pacing_status = PACING_NEEDED;
	return 0;
}

SEC("struct_ops/control")
int control(u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	u64 *rate = sk_storage_get(&autobyte_rates, sk, 0, 0);
	u64 window;

	if (!rate)
		return 0;
	sk->sk_pacing_rate = *rate;
	window = tp->mss_cache ? *rate * ROUND_TRIPS / tp->mss_cache * (tp->srtt_us >> 3) / US_PER_S : 0;
	if (window < LEAST_WINDOW)
		window = LEAST_WINDOW;
	tp->snd_cwnd = window;
	return 0;
}

SEC("struct_ops/ssthresh")
int ssthresh(u64 *ctx)
{
	return ((struct tcp_sock *)ctx[0])->snd_cwnd;
}

SEC("struct_ops/undo")
int undo(u64 *ctx)
{
	return ((struct tcp_sock *)ctx[0])->snd_cwnd;
}

SEC(".struct_ops")
struct tcp_congestion_ops autobyte = {
	.init = (void *)init,
	.cong_control = (void *)control,
	.ssthresh = (void *)ssthresh,
	.undo_cwnd = (void *)undo,
	.name = "autobyte",
};

char licence[] SEC("license") = "GPL";
