"""The published controller, written for os-ken as its examples are: the peer of `levada openflow`.

For os-ken's own program (Debian: python3-os-ken), not for the lab's Python:
`LB_SERVICE=.. LB_SERVERS=.. osken-manager lab/osken_balancer.py`. The first frame of a connection
comes here; the next server in turn gets it, by two flows with an idle timeout, a barrier, and the
frame itself. ARP for the service's address is answered from here. All else is forwarded as usual.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN204, RUF012

import itertools
import os
import time

from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import arp, ethernet, ipv4, packet, tcp
from os_ken.ofproto import ofproto_v1_3

SERVICE_IP, SERVICE_MAC, SERVICE_PORT = os.environ["LB_SERVICE"].split(",")
SERVICE_PORT = int(SERVICE_PORT)
SERVERS = [server.split(",") for server in os.environ["LB_SERVERS"].split(";")]
IDLE_S = 10
#: Less than IDLE_S: in that time a connection's flows do not go.
SAME_S = 5.0


class Balancer(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.turn = itertools.cycle(SERVERS)
        self.known = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def begin(self, event):
        switch = event.msg.datapath
        protocol, parser = switch.ofproto, switch.ofproto_parser
        ask = [parser.OFPActionOutput(protocol.OFPP_CONTROLLER, protocol.OFPCML_NO_BUFFER)]
        usual = [parser.OFPActionOutput(protocol.OFPP_NORMAL)]
        to = {"eth_type": 0x0800, "ip_proto": 6, "ipv4_dst": SERVICE_IP, "tcp_dst": SERVICE_PORT}
        self.add(switch, 20, parser.OFPMatch(**to), ask)
        self.add(switch, 20, parser.OFPMatch(eth_type=0x0806, arp_tpa=SERVICE_IP), ask)
        self.add(switch, 0, parser.OFPMatch(), usual)

    def add(self, switch, priority, match, actions, idle=0):
        protocol, parser = switch.ofproto, switch.ofproto_parser
        apply = parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions)
        switch.send_msg(
            parser.OFPFlowMod(
                datapath=switch,
                priority=priority,
                match=match,
                instructions=[apply],
                idle_timeout=idle,
            )
        )

    def send(self, switch, in_port, actions, data):
        protocol, parser = switch.ofproto, switch.ofproto_parser
        switch.send_msg(
            parser.OFPPacketOut(
                datapath=switch,
                buffer_id=protocol.OFP_NO_BUFFER,
                in_port=in_port,
                actions=actions,
                data=data,
            )
        )

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event):
        message = event.msg
        switch, in_port = message.datapath, message.match["in_port"]
        seen = packet.Packet(message.data)
        asked = seen.get_protocol(arp.arp)
        if asked is not None:
            self.answer(switch, in_port, asked)
            return
        ip, segment = seen.get_protocol(ipv4.ipv4), seen.get_protocol(tcp.tcp)
        if ip is None or segment is None:
            return
        parser, protocol = switch.ofproto_parser, switch.ofproto
        key, now = (ip.src, segment.src_port), time.monotonic()
        # Later frames that came here before the flows were there go the way of the first. Behind
        # that, a client's port that comes again is another connection, and its flows are gone.
        server, since = self.known.get(key, (None, 0.0))
        is_new = server is None or now - since >= SAME_S
        if is_new:
            server = next(self.turn)
            self.known[key] = server, now
        server_ip, server_mac, server_port = server
        there = [
            parser.OFPActionSetField(eth_dst=server_mac),
            parser.OFPActionSetField(ipv4_dst=server_ip),
            parser.OFPActionSetField(tcp_dst=int(server_port)),
            parser.OFPActionOutput(protocol.OFPP_NORMAL),
        ]
        back = [
            parser.OFPActionSetField(eth_src=SERVICE_MAC),
            parser.OFPActionSetField(ipv4_src=SERVICE_IP),
            parser.OFPActionSetField(tcp_src=SERVICE_PORT),
            parser.OFPActionOutput(protocol.OFPP_NORMAL),
        ]
        if is_new:
            ends = {"eth_type": 0x0800, "ip_proto": 6}
            answer = parser.OFPMatch(
                **ends,
                ipv4_src=server_ip,
                ipv4_dst=ip.src,
                tcp_src=int(server_port),
                tcp_dst=segment.src_port,
            )
            request = parser.OFPMatch(
                **ends,
                ipv4_src=ip.src,
                ipv4_dst=SERVICE_IP,
                tcp_src=segment.src_port,
                tcp_dst=SERVICE_PORT,
            )
            self.add(switch, 30, answer, back, IDLE_S)
            self.add(switch, 30, request, there, IDLE_S)
            switch.send_msg(parser.OFPBarrierRequest(switch))
        self.send(switch, in_port, there, message.data)

    def answer(self, switch, in_port, asked):
        reply = packet.Packet()
        reply.add_protocol(ethernet.ethernet(asked.src_mac, SERVICE_MAC, 0x0806))
        reply.add_protocol(
            arp.arp(
                opcode=2,
                src_mac=SERVICE_MAC,
                src_ip=SERVICE_IP,
                dst_mac=asked.src_mac,
                dst_ip=asked.src_ip,
            )
        )
        reply.serialize()
        output = [switch.ofproto_parser.OFPActionOutput(in_port)]
        self.send(switch, switch.ofproto.OFPP_CONTROLLER, output, reply.data)
