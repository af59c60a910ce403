"""Finds the folder of an Ansible collection on the machine that runs Ansible."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: collection_path
author: latfarm
version_added: 0.1.0
short_description: Find the folder of a collection
description:
  - Tells where the collection lies from which this run of Ansible would load a plugin.
options:
  _terms:
    description: Full names of collections, for example C(community.crypto).
    required: true
"""

EXAMPLES = """
- name: Tell where community.crypto is
  ansible.builtin.debug:
    msg: "{{ lookup('latfarm.farm.collection_path', 'community.crypto') }}"
"""

RETURN = """
_raw:
  description: One path for each name.
  type: list
  elements: path
"""


class LookupModule(LookupBase):
    """Asks Ansible's own loader of collections."""

    def run(self, terms: Any, **_: Any) -> list[str]:
        """Return the folder of each collection.

        Raises:
            AnsibleLookupError: a collection is not installed.
        """
        found = []
        for name in terms:
            try:
                # Ansible makes collections packages below this one, wherever they lie.
                package = import_module(f"ansible_collections.{name}")
            except ImportError as error:
                raise AnsibleLookupError(
                    f"the collection {name} is not installed where Ansible runs: "
                    f"ansible-galaxy collection install {name}"
                ) from error
            found.append(next(iter(package.__path__)))
        return found
