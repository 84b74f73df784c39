/* SPDX-License-Identifier: GPL-2.0 */
/* What the module agent does for the module listener: an agent serves one connection. */
#ifndef RNIC_AGENT_H
#define RNIC_AGENT_H

#include <linux/seq_file.h>
#include <rdma/rdma_cm.h>

/*
 * Serve the connection of a request.  It is called in the handler of the request's event, and
 * returns at once; the agent accepts later, in a work item.  From now on the id is the agent's.
 * Returns -EUSERS if there are max agents, or -ENOMEM; then the id is still the caller's.
 */
int rnic_agent_start(struct rdma_cm_id *id, unsigned int max);

/* Take in a later event of such an id, in the handler. */
void rnic_agent_event(struct rdma_cm_id *id, const struct rdma_cm_event *event);

/* End the connection with this number; -ENOENT if there is none.  It does not wait for the end. */
int rnic_agent_disconnect(u32 number);

/* End all connections, and return when all that they had is freed.  May sleep. */
void rnic_agents_end(void);

/* Print the agents, a line each, and what all agents ever have done.  May sleep. */
void rnic_agents_show(struct seq_file *m);

#endif
