"""How gradients travel: blocks and plans, the core that orders them, policies that cut, engines that move."""
