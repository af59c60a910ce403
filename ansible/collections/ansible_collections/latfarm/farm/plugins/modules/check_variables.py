#!/usr/bin/python
"""The documentation of an action: Ansible runs it on the controller, and nothing on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Refuses variables that look like latfarm's and are none
description:
  - Compares the names of all variables of a host with those that the roles of this collection
    declare in their C(meta/argument_specs.yml). Every name that begins with C(latfarm_) must be
    declared. A name that begins with C(alertmanager_), C(controller_), C(grafana_) or
    C(prometheus_) is refused only if it is nearly one of latfarm's, because other collections have
    such variables, too.
  - The nearest name is offered. A variable of yours with such a name can be named in
    C(latfarm_other_variables).
  - Every role of this collection does this first, in check mode as well.
author:
  - latfarm
options: {}
"""

EXAMPLES = r"""
- name: Check the names of the variables
  latfarm.farm.check_variables:
"""

RETURN = "{}"
